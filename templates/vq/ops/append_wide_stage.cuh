// One stage of the codes of kv_append where entries have more than 8 elements: as AppendStage
// (append_stage.cuh) but that sub-vectors stay in shared memory and entries come a piece of 8
// elements at a time. A general form, whose lanes each read an entry of their own.
#pragma once

#include <vq/ops/append_stage.cuh>

namespace vq {

template <class Share>
class AppendWideStage {
 public:
  static_assert(Share::kFormat.decoder == Decoder::table, "");
  static constexpr int kEntries = Share::kEntries;
  static constexpr int kResiduals = Share::kResiduals;
  static constexpr int kPieces = entry_pieces(Share::kFormat);
  static constexpr int kPiece = piece_elements(Share::kFormat);
  static constexpr int kWarps = Share::kConfig.warps_along_entries;
  // Pieces of an entry in global memory that are on their way together.
  static constexpr int kTogether = kPieces <= 8 ? kPieces : kPieces % 2 == 0 ? kPieces / 2 : 1;
  using Words = typename Share::Words;
  using Narrow = AppendStage<Share>;

  VQ_DEVICE AppendWideStage(const Share& share, int stage) : share_(share), stage_(stage) {}

  VQ_DEVICE void prepare() const {}

  VQ_DEVICE void search() const {
    const int part = warp() % kWarps;
    for (int item = warp() / kWarps; item < share_.work.count * share_.vectors;
         item += Share::kThreads / 32 / kWarps) {
      const int t = item / share_.vectors;
      const int local = item % share_.vectors;
      float least;
      u32 nearest;
      scan(t, local, part, kWarps, least, nearest);
      if (lane() != 0) continue;
      const int place = Narrow::place_of(t, local) + part;
      store_shared(Share::distances() + place, least);
      store_shared(Share::nearest() + place, nearest);
    }
  }

  // The nearest of part `part` of all entries, which `parts` warps share.
  VQ_DEVICE void scan(int t, int local, int part, int parts, float& least, u32& nearest) const {
    const i64 book = share_.book_of(share_.begin + local, stage_);
    const float scale = share_.scale_of(book);
    const float* const x = vector(t, local);
    least = infinity();
    nearest = 0;
    for (int number = part * 32 + lane(); number < kEntries; number += 32 * parts) {
      Narrow::take_next(least, nearest,
                        distance<kTogether>(x, entry(book, number), scale, LoadGlobal{}),
                        static_cast<u32>(number));
    }
    Narrow::meet(least, nearest);
  }

  // Squared; the elements in their order, as the quantizer adds them. `load` is of the entry, some
  // pieces of which are on their way together.
  template <int kTogether, class Load>
  VQ_DEVICE static float distance(const float* x, const Words* from, float scale, Load load) {
    float sum = 0.0f;
    for (int first = 0; first < kPieces; first += kTogether) {
      Words words[kTogether];
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) words[i] = load(from + first + i);
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        float entry[kPiece];
        if constexpr (Share::kFormat.stage_scales) {
          read_entry<Share::kConfig.element>(entry, words[i], scale);
        } else {
          VQ_UNROLL
          for (int d = 0; d < kPiece; ++d) {
            entry[d] = to_float<Share::kConfig.element>(
                static_cast<u16>(word_of(words[i], d / 2) >> d % 2 * 16 & 0xffffu));
          }
        }
        u32 of_x[kPiece];
        VQ_UNROLL
        for (int d = 0; d < kPiece; d += 4) {
          load_words<4>(of_x + d, reinterpret_cast<const u32*>(x + (first + i) * kPiece + d),
                        LoadShared{});
        }
        VQ_UNROLL
        for (int d = 0; d < kPiece; ++d) {
          const float difference = float_from_bits(of_x[d]) - entry[d];
          sum += difference * difference;
        }
      }
    }
    return sum;
  }

  VQ_DEVICE void settle() const {
    for (int i = thread_index(); i < share_.work.count * share_.vectors; i += Share::kThreads) {
      const int t = i / share_.vectors;
      const int local = i % share_.vectors;
      const u32 code = Narrow::nearest_of_all(Narrow::place_of(t, local));
      store_shared(Share::codes() + (t * Share::kVectors + local) * kResiduals + stage_, code);
      if (stage_ + 1 == kResiduals) continue;
      const i64 book = share_.book_of(share_.begin + local, stage_);
      const Words* const from = entry(book, static_cast<int>(code));
      float* const x = vector(t, local);
      for (int piece = 0; piece < kPieces; ++piece) {
        float taken[kPiece];
        read_entry<Share::kConfig.element>(taken, load_global(from + piece), share_.scale_of(book));
        VQ_UNROLL
        for (int d = 0; d < kPiece; ++d) {
          float* const rest = x + piece * kPiece + d;
          store_shared(rest, load_shared(rest) - taken[d]);
        }
      }
    }
  }

 private:
  VQ_DEVICE float* vector(int t, int local) const {
    return Share::row(t) + (share_.begin + local) * Share::kVectorSize;
  }
  VQ_DEVICE const Words* entry(i64 book, int number) const {
    return reinterpret_cast<const Words*>(share_.to.codebooks) +
           (book * kEntries + number) * kPieces;
  }

  const Share& share_;
  int stage_;
};

}  // namespace vq

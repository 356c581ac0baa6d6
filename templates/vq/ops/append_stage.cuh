// One stage of the codes of kv_append: the nearest candidate to what is left of each sub-vector of
// the block's share.
//
//   search   a group of warps per run of sub-vectors: the nearest of each warp's entries
//   settle   a thread per sub-vector: the nearest of all, its code; the row less its value
//
// Callers put a barrier before, between and after the steps.
#pragma once

#include <vq/codebook/decoding.cuh>
#include <vq/ops/append_share.cuh>

namespace vq {

template <class Share>
class AppendStage {
 public:
  static constexpr int kRun = run_sub_vectors(Share::kConfig, Share::kFormat);
  static constexpr int kEntries = Share::kEntries;
  static constexpr int kResiduals = Share::kResiduals;
  static constexpr int kWarps = Share::kConfig.warps_along_entries;
  static constexpr Element kElement = Share::kConfig.element;
  using Candidates = typename Share::Candidates;
  using Vector = typename Share::Vector;

  VQ_DEVICE AppendStage(const Share& share, int stage) : share_(share), stage_(stage) {}

  VQ_DEVICE void prepare() const {}

  // Runs are of the head's sub-vectors, so that each lies in one unit; those that reach beyond the
  // share repeat its first or last sub-vector.
  VQ_DEVICE void search() const {
    const int first_run = share_.begin / kRun;
    const int runs = ceil_div(share_.begin + share_.vectors, kRun) - first_run;
    const int part = warp() % kWarps;
    for (int item = warp() / kWarps; item < share_.work.count * runs;
         item += Share::kThreads / 32 / kWarps) {
      const int t = item / runs;
      const int first_vector = (first_run + item % runs) * kRun;
      const i64 book = share_.book_of(first_vector, stage_);
      const float scale = share_.scale_of(book);
      Vector x[kRun];
      VQ_UNROLL
      for (int j = 0; j < kRun; ++j) Share::load_vector(x[j], t, clipped(first_vector + j), scale);
      float least[kRun];
      u32 nearest[kRun];
      scan(x, book, Candidates::entry_scale(scale), part, least, nearest);
      VQ_UNROLL
      for (int j = 0; j < kRun; ++j) {
        meet(least[j], nearest[j]);
        const int local = first_vector + j - share_.begin;
        if (lane() != j || local < 0 || local >= share_.vectors) continue;
        const int place = place_of(t, local) + part;
        store_shared(Share::distances() + place, least[j]);
        store_shared(Share::nearest() + place, nearest[j]);
      }
    }
  }

  VQ_DEVICE void settle() const {
    using Decode = Decoding<Share::kFormat.decoder, kElement, false>;  // decodes entries as stored
    for (int i = thread_index(); i < share_.work.count * share_.vectors; i += Share::kThreads) {
      const int t = i / share_.vectors;
      if (!share_.has(t)) continue;
      const int local = i % share_.vectors;
      const int vector = share_.begin + local;
      const u32 nearest = nearest_of_all(place_of(t, local));
      const int number = static_cast<int>(nearest) % kEntries;
      const int candidate = static_cast<int>(nearest) / kEntries;
      const i64 book = share_.book_of(vector, stage_);
      const float scale = share_.scale_of(book);
      const auto words = share_.entry(book, number);
      Vector x, entry;
      Share::load_vector(x, t, vector, scale);
      read_entry<kElement>(entry, words, Candidates::entry_scale(scale));
      const u32 code = Candidates::code(x, entry, number, candidate);
      store_shared(Share::codes() + (t * Share::kVectors + local) * kResiduals + stage_, code);
      if (stage_ + 1 == kResiduals) continue;
      read_entry<kElement>(entry, Decode::value(Decode::held(words), code), scale);
      float* const rest = Share::row(t) + vector * Share::kVectorSize;
      VQ_UNROLL
      for (int d = 0; d < Share::kVectorSize; ++d) {
        store_shared(rest + d, load_shared(rest + d) - entry[d]);
      }
    }
  }

  // This lane's entries: some loads are begun before the first is used. What compares as NaN is
  // never nearer, so that a sub-vector of NaN gets code 0.
  VQ_DEVICE void scan(const Vector (&x)[kRun], i64 book, float scale, int part,
                      float (&least)[kRun], u32 (&nearest)[kRun]) const {
    constexpr int kStep = 32 * kWarps;
    constexpr int kTurns = ceil_div(kEntries, kStep);
    constexpr int kAhead = kTurns < 4 ? kTurns : 4;
    VQ_UNROLL
    for (int j = 0; j < kRun; ++j) {
      least[j] = infinity();
      nearest[j] = 0;
    }
    const int mine = part * 32 + lane();
    for (int turn = 0; turn < kTurns; turn += kAhead) {
      typename Share::Words words[kAhead];
      VQ_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int number = (turn + ahead) * kStep + mine;
        words[ahead] = share_.entry(book, kEntries % kStep == 0 || number < kEntries ? number : 0);
      }
      VQ_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int number = (turn + ahead) * kStep + mine;
        if (kEntries % kStep != 0 && number >= kEntries) continue;
        Vector entry;
        read_entry<kElement>(entry, words[ahead], scale);
        VQ_UNROLL
        for (int variant = 0; variant < Candidates::kOfEntry; ++variant) {
          const u32 candidate = static_cast<u32>(variant * kEntries + number);
          VQ_UNROLL
          for (int j = 0; j < kRun; ++j) {
            const float distance = Candidates::distance(x[j], entry, variant);
            if constexpr (Candidates::kOfEntry == 1) {
              take_next(least[j], nearest[j], distance, candidate);
            } else {
              take_nearer(least[j], nearest[j], distance, candidate);
            }
          }
        }
      }
    }
  }

  VQ_DEVICE static void take_nearer(float& least, u32& nearest, float distance, u32 candidate) {
    const bool nearer = distance < least || (distance == least && candidate < nearest);
    least = nearer ? distance : least;
    nearest = nearer ? candidate : nearest;
  }
  // take_nearer() of a candidate whose number is higher than all before.
  VQ_DEVICE static void take_next(float& least, u32& nearest, float distance, u32 candidate) {
    const bool nearer = distance < least;
    least = nearer ? distance : least;
    nearest = nearer ? candidate : nearest;
  }
  // The nearest of the warp's lanes, in all of them. Distances are not negative, so their bits are
  // in their order.
  VQ_DEVICE static void meet(float& least, u32& nearest) {
    const u32 bits = ~largest_of_warp(~float_bits(least));
    nearest = ~largest_of_warp(float_bits(least) == bits ? ~nearest : 0u);
    least = float_from_bits(bits);
  }

  // The nearest entry over all warps of the block, ties to the lowest index.
  VQ_DEVICE static u32 nearest_of_all(int place) {
    if constexpr (kWarps == 1) return load_shared(Share::nearest() + place);
    float least = load_shared(Share::distances() + place);
    u32 nearest = load_shared(Share::nearest() + place);
    VQ_UNROLL
    for (int part = 1; part < kWarps; ++part) {
      take_nearer(least, nearest, load_shared(Share::distances() + place + part),
                  load_shared(Share::nearest() + place + part));
    }
    return nearest;
  }

  // Slot of the first warp's nearest entry to sub-vector `local` of the share.
  VQ_DEVICE static int place_of(int t, int local) { return (t * Share::kVectors + local) * kWarps; }

 private:
  VQ_DEVICE int clipped(int vector) const {
    const int last = share_.begin + share_.vectors - 1;
    return vector < share_.begin ? share_.begin : vector > last ? last : vector;
  }

  const Share& share_;
  int stage_;
};

}  // namespace vq

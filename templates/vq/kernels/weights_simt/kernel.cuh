// weight_dequantize: rows of a quantized matrix as dense ones. A block has some rows, aligned in
// the matrix, and a chunk of their columns, whose codebooks it loads once. A lane makes 8 columns
// of a row at a time, an octet, so that stores are coalesced; codes of its next octets load
// meanwhile.
#pragma once

#include <vq/args/weight_dequantize.h>
#include <vq/kernels/weights_simt/plan.h>
#include <vq/ops/group_scale.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

// The codes of an octet of columns. Behind align() they begin with bit 0 of the first word.
template <class Plan>
class OctetCodes {
 public:
  using Work = LinearWork<Plan>;
  static constexpr FormatConfig kFormat = Plan::config().weights;
  static constexpr int kBits =
      kDecodedColumns / kFormat.vector_size * kFormat.num_codebooks * kFormat.index_bits;
  static constexpr int kWords = ceil_div(kBits, 32);

  VQ_DEVICE void load(const u32* row, int octet) {
    const int first = octet * kBits / 32;
    VQ_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const int word =
          kStraddles || !kWholeRows ? (first + i < kLast ? first + i : kLast) : first + i;
      words_[i] = load_word(row + word_place(Work::kLayout, word));
    }
    shift_ = octet * kBits % 32;
  }
  VQ_DEVICE void align() {
    if constexpr (kStraddles) {
      VQ_UNROLL
      for (int i = 0; i < kWords; ++i) words_[i] = word_across(words_[i], words_[i + 1], shift_);
    } else if constexpr (kBits % 32 != 0) {
      words_[0] >>= shift_;
    }
  }
  VQ_DEVICE auto code(int sub_vector, int stage) const {
    return code_in<kFormat.index_bits>(words_, sub_vector * kFormat.num_codebooks + stage);
  }

 private:
  static constexpr bool kStraddles = kBits % 32 != 0 && 32 % kBits != 0;
  static constexpr bool kWholeRows = Work::kInFeatures % kDecodedColumns == 0;
  static constexpr int kLoads = kStraddles ? kWords + 1 : kWords;
  static constexpr int kLast = static_cast<int>(code_words(kFormat, Work::kInFeatures)) - 1;

  // Words that several loads of a warp share stay in L1.
  VQ_DEVICE static u32 load_word(const u32* word) {
    if constexpr (kLoads == 1 && Work::kLayout.plain()) {
      return stream_constant(word);
    } else {
      return begin_constant(word);
    }
  }

  u32 words_[kLoads];
  int shift_;
};

template <class Plan>
class WeightRowsBlock {
 public:
  using Work = LinearWork<Plan>;
  using Book = typename Work::Book;
  using Codes = OctetCodes<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kStages = kFormat.num_codebooks;
  static constexpr i64 kInFeatures = Work::kInFeatures;
  static constexpr int kChunk = kConfig.chunk_columns;
  static constexpr int kRows = kConfig.weight_rows;
  static constexpr int kThreads = kConfig.threads;
  static constexpr int kOctets = kChunk / kDecodedColumns;  // of a row
  static constexpr bool kWholeOctets = kInFeatures % kDecodedColumns == 0;
  // Octets of a lane whose codes are on their way.
  static constexpr int kTogether = Codes::kWords <= 2 ? 4 : Codes::kWords <= 4 ? 2 : 1;

  VQ_DEVICE explicit WeightRowsBlock(const WeightDequantizeArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        first_(static_cast<int>(args.first_row / kRows + block_x()) * kRows),
        first_column_(i64{block_y()} * kChunk) {}

  VQ_DEVICE void run() {
    // Rows of the block that are wanted.
    const i64 end = args_.first_row + args_.rows;
    const int skipped = args_.first_row > first_ ? static_cast<int>(args_.first_row - first_) : 0;
    const int last = end - first_ < kRows ? static_cast<int>(end - first_) : kRows;
    if (skipped >= last) return after_last_launch();
    next_ = skipped * kOctets + thread_index();
    end_ = last * kOctets;
    book_.switch_to(unit_of(first_, first_column_));
    const auto begun = book_.begin(thread_index());
    Octet octets[kTogether];
    load(octets);
    after_last_launch();
    book_.finish(thread_index(), begun);
    sync_block();
    while (next_ < end_) {
      next_ += kTogether * kThreads;
      Octet following[kTogether];
      load(following);
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) decode(octets[i]);
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) octets[i] = following[i];
    }
  }

 private:
  struct Octet {
    Codes codes;
    int row;  // of the matrix; -1: none
    int column;
  };

  // The lane's octets from number next_ on.
  VQ_DEVICE void load(Octet (&octets)[kTogether]) const {
    VQ_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int number = next_ + i * kThreads;
      const int row = static_cast<int>(static_cast<u32>(number) / kOctets);
      const int column =
          static_cast<int>(first_column_) + (number - row * kOctets) * kDecodedColumns;
      octets[i].row = number < end_ && column < kInFeatures ? first_ + row : -1;
      octets[i].column = column;
      if (octets[i].row < 0) continue;
      octets[i].codes.load(
          args_.weights.codes + row_place(Work::kLayout, Work::kRowWords, i64{octets[i].row}),
          column / kDecodedColumns);
    }
  }

  VQ_DEVICE void decode(Octet& octet) const {
    if (octet.row < 0) return;
    octet.codes.align();
    u32 words[kDecodedColumns / 2];
    if constexpr (kIsEntry) {
      VQ_UNROLL
      for (int s = 0; s < kDecodedColumns / kVectorSize; ++s) {
        rebuild<Rebuilt::kEntry, kConfig.element>(
            words + s * kVectorSize / 2, book_, unit(octet, s), 0, 0,
            [&](int stage) { return octet.codes.code(s, stage); });
      }
    } else {
      float value[kDecodedColumns];
      look_up(value, octet);
      VQ_UNROLL
      for (int i = 0; i < kDecodedColumns; i += 2) {
        words[i / 2] = pack2<kConfig.element>(value[i], value[i + 1]);
      }
    }
    store(octet, words);
  }

  // True if a decoded entry can be stored as it is.
  static constexpr bool kIsEntry =
      kStages == 1 && !kFormat.stage_scales && !kConfig.output_scales && kFormat.group_inputs == 0;
  VQ_DEVICE void look_up(float (&value)[kDecodedColumns], const Octet& octet) const {
    float of_row = 1.0f;
    if constexpr (kConfig.output_scales) of_row = load_constant(args_.output_scales + octet.row);
    VQ_UNROLL
    for (int s = 0; s < kDecodedColumns / kVectorSize; ++s) {
      const auto code = [&](int stage) { return octet.codes.code(s, stage); };
      float part[kVectorSize];
      float scale = of_row;
      if constexpr (kConfig.sums_are_bytes) {
        scale *= book_.scale(unit(octet, s), 0);
        sum_bytes(part, unit(octet, s), code);
      } else {
        book_.decode(part, unit(octet, s), code);
      }
      if constexpr (kFormat.group_inputs > 0) {
        const auto factor =
            GroupScale<Plan>::at(args_.weights.codes, octet.row, octet.column + s * kVectorSize);
        if constexpr (kFormat.group_minima) {
          VQ_UNROLL
          for (int i = 0; i < kVectorSize; ++i) part[i] = apply_factor(factor, part[i]);
        } else {
          scale *= factor;
        }
      }
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) value[s * kVectorSize + i] = part[i] * scale;
    }
  }

  // The sums of the stages' bytes. A byte v is kept as v + 128, so that words of four add up
  // without a carry between them.
  template <class Code>
  VQ_DEVICE void sum_bytes(float (&sums)[kVectorSize], int unit, Code code) const {
    constexpr u32 kRaised = 0x80808080u;
    u32 raised[kVectorSize / 4];
    VQ_UNROLL
    for (int i = 0; i < kVectorSize / 4; ++i) raised[i] = -static_cast<u32>(kStages - 1) * kRaised;
    VQ_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      if constexpr (kFormat.decoder == Decoder::signs) {
        const u32 signs = code(stage);
        const auto held = book_.held(unit, stage, signs);
        VQ_UNROLL
        for (int i = 0; i < kVectorSize / 4; ++i) {
          raised[i] +=
              signed_bytes(word_of(held, i), Book::Decode::signs_of(signs) >> 4 * i) ^ kRaised;
        }
      } else {
        const auto held = book_.held(unit, 0, stage, code(stage));
        VQ_UNROLL
        for (int i = 0; i < kVectorSize / 4; ++i) raised[i] += word_of(held, i) ^ kRaised;
      }
    }
    // Below 2^23 in fp32 a byte is the last bits of a number that is so much more.
    constexpr u32 kSelectors[] = {0x7440u, 0x7441u, 0x7442u, 0x7443u};
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const u32 bits = byte_permute(raised[i / 4], 0x4b000000u, kSelectors[i % 4]);
      sums[i] = float_from_bits(bits) - 8388736.0f;
    }
  }

  VQ_DEVICE void store(const Octet& octet, const u32 (&words)[kDecodedColumns / 2]) const {
    const int row = octet.row - static_cast<int>(args_.first_row);
    u16* const to = args_.out + i64{row} * kInFeatures + octet.column;
    if constexpr (kWholeOctets) {
      store_global(reinterpret_cast<U32x4*>(to), U32x4{words[0], words[1], words[2], words[3]});
    } else {
      VQ_UNROLL
      for (int i = 0; i < kDecodedColumns; ++i) {
        if (octet.column + i >= kInFeatures) break;
        store_global(to + i, static_cast<u16>(words[i / 2] >> i % 2 * 16));
      }
    }
  }

  VQ_DEVICE static i64 unit_of(i64 row, i64 column) {
    return row / Work::kUnitRows * Work::kUnitsPerRow + column / kConfig.unit_columns;
  }
  // The unit of the octet's sub-vector number `s`, counted from the bound one. Sub-vectors past the
  // row's end have one too.
  VQ_DEVICE int unit(const Octet& octet, int s) const {
    constexpr bool kOneColumn = chunk_in_one_unit(kConfig);
    constexpr bool kOneRow = Work::kUnitRows >= Work::kOutFeatures || Work::kUnitRows % kRows == 0;
    if constexpr (kOneColumn && kOneRow) return 0;
    const i64 column = octet.column + s * kVectorSize;
    const i64 of_column = kOneColumn || column >= kInFeatures ? first_column_ : column;
    return static_cast<int>(unit_of(kOneRow ? first_ : octet.row, of_column) -
                            unit_of(first_, first_column_));
  }

  const WeightDequantizeArgs& args_;
  Book book_;
  int first_;  // row of the matrix
  i64 first_column_;
  int next_ = 0;  // octet of the block, counted row by row
  int end_ = 0;
};

template <class Plan>
VQ_DEVICE void weight_dequantize_simt(const WeightDequantizeArgs& args) {
  WeightRowsBlock<Plan>(args).run();
}

}  // namespace vq

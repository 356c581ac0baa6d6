// GEMV by lookup tables of inner products: y = x W^T without rebuilding a weight. A block takes one
// chunk of columns, some sub-vectors of x per lane, and computes the inner product of each with
// each entry once (inner_products.cuh); then a code of any output costs one conflict-free 4-byte
// lookup and stands for vector_size weights.
//
// The lanes' sums meet by a transposing reduction, those of chunks as split-K partials
// (linear_work.cuh). It is the codebook-centric dataflow of VQ-LLM VI-A in the extreme; VecInfer
// and MILLION do the same for keys.
#pragma once

#include <vq/kernels/linear_lut/plan.h>
#include <vq/codes.cuh>
#include <vq/kernels/linear_lut/inner_products.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Plan>
class LinearLutBlock {
 public:
  using Work = LinearWork<Plan>;
  using Products = InnerProducts<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kRows = block_rows(kConfig);
  static constexpr int kOutputs = kConfig.outputs_per_warp;
  static constexpr int kGroup = table_group(kConfig);
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kSubVectors = kConfig.sub_vectors_per_lane;
  static constexpr int kBits = kFormat.index_bits;
  static constexpr int kTables = row_tables(kConfig);
  static constexpr int kLaneBits = kTables * kBits;
  static_assert(kLaneBits <= 32, "");
  static_assert(kSubVectors == 1 || 32 % kLaneBits == 0, "whole shares of a word");
  static constexpr bool kStraddles = 32 % kLaneBits != 0;
  static constexpr CodeLayout kLayout = kFormat.layout;
  // True if groups of outputs are whole groups of the layout; then outputs per access.
  static constexpr bool kWholeGroups = kGroup % kLayout.rows == 0;
  static constexpr int kTogether = kWholeGroups && kLayout.words == 1 ? kLayout.rows : 1;

  // The words that hold this lane's codes of an output, as they were loaded: to shift them before
  // their use would wait for a load that is to be in flight meanwhile.
  struct Words {
    u32 low;
    u32 high;  // straddling codes alone
  };

  VQ_DEVICE explicit LinearLutBlock(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        first_output_(Work::first_output() + i64{warp()} * kOutputs),
        first_row_(block_y() * kRows) {
    // A lane past the end of the columns reads the last sub-vector's codes, one that crosses it
    // the rest of that word; the x of both are zeros.
    const i64 sub_vector = Work::begin() / kVectorSize + lane() * kSubVectors;
    const i64 last = Work::kInFeatures / kVectorSize - 1;
    const i64 bit = (sub_vector < last ? sub_vector : last) * (kFormat.num_codebooks * kBits);
    lane_words_ = args.weights.codes +
                  row_place(kLayout, Work::kRowWords, first_output_ - in_layout_group()) +
                  word_place(kLayout, bit / 32);
    next_word_ =
        static_cast<int>(word_place(kLayout, bit / 32 + 1) - word_place(kLayout, bit / 32));
    lane_shift_ = static_cast<int>(bit % 32);
    const i64 left = Work::kOutFeatures - first_output_;
    held_outputs_ = left < kOutputs ? static_cast<int>(left) : kOutputs;
  }

  VQ_DEVICE void run() {
    Words next[kGroup];
    load_codes(0, next);  // in flight while the tables are made
    const bool loaded = book_.switch_to(Work::bound_unit(Work::begin()));
    if (loaded) book_.load();
    after_last_launch();
    if (loaded) sync_block();
    make_tables();
    sync_block();
    for (int group = 0; group < kOutputs; group += kGroup) {
      Words now[kGroup];
      VQ_UNROLL
      for (int o = 0; o < kGroup; ++o) now[o] = next[o];
      load_codes(group + kGroup, next);
      u32 codes[kGroup];
      VQ_UNROLL
      for (int o = 0; o < kGroup; ++o) codes[o] = codes_of(now[o]);
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r > 0 && first_row_ + r >= Work::rows(args_)) break;
        float sums[kGroup];
        look_up(codes, r, sums);
        const float sum = transposing_sum<kGroup>(sums);
        if (lane() < kGroup && group + lane() < held_outputs_ &&
            first_row_ + r < Work::rows(args_)) {
          Work::write(args_, first_row_ + r, first_output_ + group + lane(), sum);
        }
      }
    }
  }

 private:
  // The words of all stages of this lane's sub-vectors, of a group of the warp's outputs; zeros for
  // those past the matrix.
  VQ_DEVICE void load_codes(int group, Words (&to)[kGroup]) const {
    const int left = group < kOutputs ? held_outputs_ - group : 0;
    if (left >= kGroup) {  // all lanes alike
      VQ_UNROLL
      for (int o = 0; o < kGroup; o += kTogether) load_outputs(group, to, o);
    } else {
      VQ_UNROLL
      for (int o = 0; o < kGroup; ++o) to[o] = Words{};
      VQ_UNROLL
      for (int o = 0; o < kGroup; o += kTogether) {
        if (o < left) load_outputs(group, to, o);
      }
    }
  }
  // Loads outputs [o, o + kTogether) of a group.
  VQ_DEVICE void load_outputs(int group, Words (&to)[kGroup], int o) const {
    const u32* const word = lane_words_ + row(group, o);
    u32 words[kTogether];
    load_words<kTogether>(words, word, BeginConstant());
    VQ_UNROLL
    for (int i = 0; i < kTogether; ++i) to[o + i] = {words[i], 0u};
    if constexpr (kStraddles) {
      if (lane_shift_ + kLaneBits > 32) {
        load_words<kTogether>(words, word + next_word_, BeginConstant());
        VQ_UNROLL
        for (int i = 0; i < kTogether; ++i) to[o + i].high = words[i];
      }
    }
  }
  // Offset in words from lane_words_ to output `o` of a group.
  VQ_DEVICE i64 row(int group, int o) const {
    if constexpr (kWholeGroups) {
      return row_place(kLayout, Work::kRowWords, i64{group}) +
             row_place(kLayout, Work::kRowWords, i64{o});
    } else {
      return row_place(kLayout, Work::kRowWords, in_layout_group() + group + o);
    }
  }
  // Outputs from the first of the layout's group to the warp's first.
  VQ_DEVICE i64 in_layout_group() const { return first_output_ % kLayout.rows; }
  VQ_DEVICE u32 codes_of(const Words& words) const {
    if constexpr (kLaneBits == 32) {
      return words.low;
    } else if constexpr (kStraddles) {
      return word_across(words.low, words.high, lane_shift_);
    } else {
      return words.low >> lane_shift_;
    }
  }

  // Builds the tables of the rows that this call has. `inside` is always true for row 0, yet it
  // must stay: without it nvcc 13.0 assigns fewer registers and keeps fewer loads in flight. The
  // store's condition stays for the same reason.
  VQ_DEVICE void make_tables() const {
    const i64 first = Work::begin();
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r > 0 && first_row_ + r >= Work::rows(args_)) break;
      const bool inside = first_row_ + r < Work::rows(args_);
      const u16* x = args_.x + (inside ? first_row_ + r : 0) * Work::kInFeatures + first;
      Products::fill(r, book_, x, Work::kInFeatures - first, first);
    }
  }

  VQ_DEVICE static void look_up(const u32 (&codes)[kGroup], int row, float (&sums)[kGroup]) {
    VQ_UNROLL
    for (int o = 0; o < kGroup; ++o) {
      sums[o] = 0.0f;
      VQ_UNROLL
      for (int t = 0; t < kTables; ++t) {
        const u8* base = reinterpret_cast<const u8*>(Products::table(row, t));
        sums[o] += load_shared(reinterpret_cast<const float*>(base + place(codes[o], t)));
      }
    }
  }
  // The byte of code `t`'s row and of this lane's in it.
  VQ_DEVICE static u32 place(u32 codes, int t) {
    const u32 of_lane = static_cast<u32>(lane()) * 4;
    if constexpr (Products::kAtOnce == 2) {
      return byte_permute(codes, of_lane, 0x5504u | static_cast<u32>(t) << 4);
    } else {
      constexpr u32 kMask = (1u << kBits) - 1u;
      return (codes >> (t * kBits) & kMask) * (Products::kRowFloats * 4) | of_lane;
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  i64 first_output_;
  int first_row_;
  const u32* lane_words_;  // where this lane's codes of the layout group of the first output begin,
  int next_word_;          // from there to the next word
  int lane_shift_;         // at this bit of the word; not where they fill one
  int held_outputs_;       // existing outputs of the warp; may be negative
};

template <class Plan>
VQ_DEVICE void linear_lut(const LinearArgs& args) {
  linear_block<Plan, LinearLutBlock<Plan>>(args);
}

}  // namespace vq

// Reads the factor of a group of inputs (layout/group_scales.h).
#pragma once

#include <vq/codebook/group_factor.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class GroupScale {
 public:
  using Work = LinearWork<Plan>;
  static constexpr FormatConfig kFormat = Plan::config().weights;
  static constexpr GroupScales kGroups = group_scales(kFormat);

  // The factor at a column of an output; past the matrix's end, where x is zero, the last one.
  VQ_DEVICE static auto at(const u32* codes, i64 output, i64 column) {
    if constexpr (kGroups.inputs == 0) {
      return 1.0f;
    } else {
      constexpr i64 kCodeWords = code_words(kFormat, Work::kInFeatures);
      const i64 last = Work::kOutFeatures - 1;
      const u32* const row =
          codes + row_place(Work::kLayout, Work::kRowWords, output < last ? output : last);
      const int input =
          static_cast<int>(column < Work::kInFeatures ? column : Work::kInFeatures - 1);
      const auto word = [row](i64 number) {
        return load_constant(row + word_place(Work::kLayout, kCodeWords + number));
      };
      constexpr int kBits = kGroups.group_bits();
      if constexpr (kGroups.bits == 0) {
        return group_factor<0, kGroups.minima>(half_of(word, input / kGroups.inputs), 0);
      } else {
        constexpr i64 kPacked = kGroups.packed_words(Work::kInFeatures);
        const u32 number = code_at<kBits>(i64{input / kGroups.inputs * kBits}, word);
        const u32 of_block =
            half_of([&](i64 other) { return word(kPacked + other); }, input / kBlockInputs);
        return group_factor<kGroups.bits, kGroups.minima>(number, of_block);
      }
    }
  }

 private:
  // Number `number` of f16, two to a word; with minima, of words.
  template <class Word>
  VQ_DEVICE static u32 half_of(Word word, int number) {
    if constexpr (kGroups.minima) {
      return word(number);
    } else {
      return word(number / 2) >> number % 2 * 16 & 0xffffu;
    }
  }
};

}  // namespace vq

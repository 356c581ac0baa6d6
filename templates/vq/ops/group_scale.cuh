// Reads the scale of a group of inputs (layout/group_scales.h).
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class GroupScale {
 public:
  using Work = LinearWork<Plan>;
  static constexpr FormatConfig kFormat = Plan::config().weights;
  static constexpr GroupScales kGroups = group_scales(kFormat);

  // The scale at a column of an output; past the matrix's end, where x is zero, that of the last.
  VQ_DEVICE static float at(const u32* codes, i64 output, i64 column) {
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
      if constexpr (kGroups.bits == 0) {
        return half_of(word, input / kGroups.inputs);
      } else {
        constexpr i64 kPacked = kGroups.packed_words(Work::kInFeatures);
        const u32 s = code_at<kGroups.bits>(i64{input / kGroups.inputs * kGroups.bits}, word);
        const float d =
            half_of([&](i64 number) { return word(kPacked + number); }, input / kBlockInputs);
        return d * static_cast<float>(2 * s + 1);
      }
    }
  }

 private:
  // Number `number` of f16, two to a word.
  template <class Word>
  VQ_DEVICE static float half_of(Word word, int number) {
    return to_float<Element::f16>(static_cast<u16>(word(number / 2) >> number % 2 * 16 & 0xffffu));
  }
};

}  // namespace vq

// Scales of groups of inputs (layout/group_scales.h) for lanes that stream codes in runs
// (layout/linear_runs.h). Their words load ahead with the codes, and become numbers run by run.
//
//   shared   the four lanes of an output load a word each, which lasts for some runs; lanes get the
//            words of their parts of a run by shuffles
//   own      each lane loads the words of its part of each run: where parts do not align with words
#pragma once

#include <vq/layout/linear_runs.h>
#include <vq/codebook/group_factor.cuh>
#include <vq/codes.cuh>

namespace vq {

// Parts of kCount numbers of kBits each, a power of two of them, out of kTotal that are packed in
// words. The first of a part is a multiple of kCount. Past the last of all, numbers are arbitrary,
// but f16 and pairs of f16 are zero.
template <int kBits, int kCount, i64 kTotal>
struct PackedParts {
  static constexpr int kSpan = kBits * kCount;
  static constexpr bool kAligned = 32 % kSpan == 0 || kSpan % 32 == 0;
  static constexpr int kWords = ceil_div(kSpan, 32) + (kAligned ? 0 : 1);  // of a part
  static constexpr int kLast = static_cast<int>((kTotal * kBits - 1) / 32) + (kAligned ? 0 : 1);
  static constexpr bool kWhole = kTotal % kCount == 0;
  // Numbers in a word of each of four lanes.
  static constexpr int kShared = kAligned && kWords <= 4 ? 128 / kBits : 0;

  VQ_DEVICE static u32 within(u32 first) {
    constexpr u32 kLastPart = static_cast<u32>((kTotal - 1) / kCount * kCount);
    return first < kLastPart ? first : kLastPart;
  }
  // The word of the part from number `first` on; one that is not aligned takes one more.
  VQ_DEVICE static int word_of_part(u32 first) {
    return static_cast<int>(within(first) * kBits / 32);
  }
  VQ_DEVICE static int existing(int word) { return word < kLast ? word : kLast; }
  // Number `i` of a part in its words, known once loops are unrolled.
  VQ_DEVICE static u32 number(const u32 (&words)[kWords], u32 first, int i) {
    constexpr u32 kMask = ~0u >> (32 - kBits);
    const auto shift = static_cast<int>(within(first) * kBits % 32);
    const int bit = i * kBits;
    if (!kWhole && kBits >= 16 && first + static_cast<u32>(i) >= kTotal) return 0;
    if constexpr (kBits == 32) {
      return words[i];
    } else if constexpr (kSpan % 32 == 0) {
      return code_in<kBits>(words, i);
    } else if constexpr (kAligned) {
      return words[0] >> (shift + bit) & kMask;
    } else {
      const auto across = [&words, shift](int word) {
        return word_across(words[word], words[word + 1], shift);
      };
      const int low = bit / 32;
      const int next = (bit + kBits - 1) / 32;  // reached into
      u32 number = across(low) >> bit % 32;
      if (next > low) number |= across(next) << (32 - bit % 32);
      return number & kMask;
    }
  }
};

// The words of one output's scales that a lane has, for parts of kColumns columns of a run. None
// where the format has none.
template <class Plan, bool kAny = (Plan::config().weights.group_inputs > 0)>
struct RunScales {
  static constexpr int kColumns = run_octets(Plan::config()) * 8;
  static constexpr int kGroups = 1;
  using Factor = float;
};
template <class Plan>
struct RunScales<Plan, true> {
  static constexpr auto kConfig = Plan::config();
  static constexpr i64 kInputs = kConfig.in_features;
  static constexpr GroupScales kScales = group_scales(kConfig.weights);
  static constexpr int kColumns = run_octets(kConfig) * 8;
  static constexpr int kGroups = most(1, kColumns / kScales.inputs);  // of a part
  static constexpr bool kBlocks = kScales.bits > 0;
  using Factor = Either<kScales.minima, ScaleAndMinimum, float>;
  using Numbers = PackedParts<kScales.group_bits(), kGroups, kInputs / kScales.inputs>;
  using Halves = PackedParts<kScales.half_bits(), most(1, kColumns / kBlockInputs),
                             ceil_div(kInputs, i64{kBlockInputs})>;
  // Columns for which shared words last: whole runs; 0 if words are a lane's own.
  static constexpr int kLasting = Numbers::kShared * kScales.inputs;
  static constexpr bool kShared =
      kLasting > 0 &&
      kLasting % run_columns(kConfig) == 0 && Halves::kShared* kBlockInputs % kLasting == 0;

  u32 numbers[kShared ? 1 : Numbers::kWords];
  u32 blocks[kShared ? 1 : Halves::kWords];

  // Words of the row of the output of which word(number) loads one, for the part at a column.
  template <class Word>
  VQ_DEVICE void load(i64 column, Word word) {
    constexpr auto kCodes = static_cast<int>(code_words(kConfig.weights, kInputs));
    constexpr auto kPacked = static_cast<int>(kScales.packed_words(kInputs));
    const u32 first = static_cast<u32>(column);
    load_part<Numbers>(numbers, first / kScales.inputs,
                       [&](int number) { return word(kCodes + number); });
    if constexpr (kBlocks) {
      load_part<Halves>(blocks, first / kBlockInputs,
                        [&](int number) { return word(kCodes + kPacked + number); });
    }
  }

  // The factors of the groups of the part at a column. All lanes.
  VQ_DEVICE void take(Factor (&to)[kGroups], i64 column) const {
    const u32 first = static_cast<u32>(column);
    u32 number_words[Numbers::kWords], block_words[Halves::kWords];
    take_part<Numbers>(number_words, numbers, first / kScales.inputs);
    if constexpr (kBlocks) take_part<Halves>(block_words, blocks, first / kBlockInputs);
    VQ_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      const u32 number = Numbers::number(number_words, first / kScales.inputs, group);
      u32 of_block = 0;
      if constexpr (kBlocks) {
        of_block = Halves::number(block_words, first / kBlockInputs,
                                  group * kScales.inputs / kBlockInputs);
      }
      to[group] = group_factor<kScales.bits, kScales.minima>(number, of_block);
    }
  }

 private:
  template <class Parts, int kCount, class Word>
  VQ_DEVICE static void load_part(u32 (&to)[kCount], u32 first, Word word) {
    const int part = Parts::word_of_part(first);
    if constexpr (kShared) {
      to[0] = word(Parts::existing(part / 4 * 4 + lane() % 4));
    } else {
      VQ_UNROLL
      for (int i = 0; i < kCount; ++i) to[i] = word(Parts::existing(part + i));
    }
  }
  template <class Parts, int kCount>
  VQ_DEVICE static void take_part(u32 (&to)[Parts::kWords], const u32 (&from)[kCount], u32 first) {
    VQ_UNROLL
    for (int i = 0; i < Parts::kWords; ++i) {
      if constexpr (kShared) {
        to[i] = shuffle(from[0], lane() / 4 * 4 + (Parts::word_of_part(first) + i) % 4);
      } else {
        to[i] = from[i];
      }
    }
  }
};

}  // namespace vq

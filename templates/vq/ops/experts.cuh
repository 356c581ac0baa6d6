// Products of several experts in one launch: which rows of x are whose, which expert a block
// serves, and the arguments of that expert as if it were alone.
//
// The grid has a slot for each expert that can have rows: slot s is the s-th that has any, so that
// blocks without work come last and leave at once.
#pragma once

#include <vq/args/linear.h>
#include <vq/layout/linear.h>
#include <vq/loads.cuh>

namespace vq {

// The rows [first, first + count) of x and y that an expert has; none where count is 0.
struct ExpertRows {
  int expert;
  int first;
  int count;
};

// All offsets are loaded after after_last_launch(): the launch before may write them. Whatever they
// are, rows stay within the call's, and an expert has at most the problem's.
template <class Plan>
class Experts {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kExperts = kConfig.experts;

  VQ_DEVICE explicit Experts(const LinearArgs& args) : args_(args) {}

  VQ_DEVICE ExpertRows rows_of(int expert) const {
    const int first = offset(expert);
    const int count = offset(expert + 1) - first;
    return {expert, first, count < kConfig.rows ? count : kConfig.rows};
  }

  // The expert of a slot, the same in all lanes of a warp, which must all arrive; without rows
  // where fewer experts have some.
  VQ_DEVICE ExpertRows in_slot(int slot) const {
    constexpr int kOfLane = ceil_div(kExperts, 32);
    u32 held = 0;  // bit i: the lane's expert i has rows
    u32 mine = 0;
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = lane() * kOfLane + i;
      if (expert >= kExperts || rows_of(expert).count <= 0) continue;
      held |= 1u << i;
      ++mine;
    }
    u32 turn = mine;  // experts with rows up to this lane's last
    VQ_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const u32 others = shuffle(turn, lane() < step ? lane() : lane() - step);
      if (lane() >= step) turn += others;
    }
    turn -= mine;
    u32 found = 0;  // its number and 1, in one lane at most
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      if ((held >> i & 1u) == 0) continue;
      if (turn == static_cast<u32>(slot)) found = static_cast<u32>(lane() * kOfLane + i + 1);
      ++turn;
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) found |= shuffle_xor(found, mask);
    return found == 0 ? ExpertRows{0, 0, 0} : rows_of(static_cast<int>(found) - 1);
  }

  // The expert that has a row, of offsets that do not descend; another one's rows, or none, where
  // no expert has it.
  VQ_DEVICE ExpertRows of_row(int row) const {
    int low = 0;
    int high = kExperts;  // offset(low) <= row < offset(high), or as if
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (offset(middle) <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return rows_of(low);
  }

  // What a kernel for that expert alone would be given: partials are those of its rows; counters,
  // and what a first kernel makes of x, those of its slot.
  VQ_DEVICE LinearArgs alone(const ExpertRows& rows, int slot) const {
    LinearArgs own = args_;
    own.rows = rows.count;
    own.x += i64{rows.first} * kConfig.in_features;
    own.y += i64{rows.first} * kConfig.out_features;
    own.weights.codes += rows.expert * expert_words(kConfig);
    own.weights.codebooks += rows.expert * expert_codebook_elements(kConfig);
    if constexpr (kConfig.weights.stage_scales) {
      own.weights.scales += rows.expert * (expert_units(kConfig) * kConfig.weights.residuals);
    }
    if constexpr (kConfig.output_scales) own.output_scales += rows.expert * kConfig.out_features;
    if constexpr (splits(kConfig) > 1) own.partials += i64{rows.first} * kConfig.out_features;
    if constexpr (kConfig.combine == Combine::last_block) {
      own.counters += slot * (counters(kConfig) / expert_slots(kConfig));
    }
    if constexpr (handed_of_slot(kConfig) > 0) own.staged += slot * handed_of_slot(kConfig);
    return own;
  }

 private:
  VQ_DEVICE int offset(int expert) const {
    const i32 offset = load_global(args_.expert_rows + expert);
    return offset < 0 ? 0 : offset > args_.rows ? args_.rows : offset;
  }

  const LinearArgs& args_;
};

// Calls act(args) with those of the expert of a slot, if it has rows; of one matrix with its own.
// All threads.
template <class Plan, class Act>
VQ_DEVICE void for_expert(const LinearArgs& args, int slot, Act act) {
  if constexpr (Plan::config().experts == 0) {
    act(args);
  } else {
    after_last_launch();
    const Experts<Plan> experts(args);
    const ExpertRows rows = experts.in_slot(slot);
    if (rows.count > 0) act(experts.alone(rows, slot));
  }
}

}  // namespace vq

// MoE: rows of x per expert, the expert of a block, and that expert's arguments as if it were
// alone.
//
// The grid has a slot for each possible block of rows, whichever experts have them: slot s has the
// s-th, counted through the experts, so that empty slots come last and end at once.
// once.
#pragma once

#include <vq/args/linear.h>
#include <vq/layout/linear.h>
#include <vq/loads.cuh>

namespace vq {

// Rows [first, first + count) of x and y, which are an expert's; none where count is 0.
struct ExpertRows {
  int expert;
  int first;
  int count;
};

// Offsets are loaded after after_last_launch(), as the previous launch may write them. Whatever
// they are, rows stay within the call's, and an expert has at most the problem's.
template <class Plan>
class Experts {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kExperts = kConfig.experts;
  static constexpr int kExpertBits = 16;  // of an expert's number, beside its block's
  static_assert(kExperts < 1 << kExpertBits);

  VQ_DEVICE explicit Experts(const LinearArgs& args) : args_(args) {}

  // All of an expert.
  VQ_DEVICE ExpertRows rows_of(int expert) const {
    const int first = offset(expert);
    const int count = offset(expert + 1) - first;
    return {expert, first, count < 0 ? 0 : count < kConfig.rows ? count : kConfig.rows};
  }

  // The rows of the expert in a slot, equal in all lanes of a warp. All lanes must call it.
  VQ_DEVICE ExpertRows in_slot(int slot) const {
    constexpr int kOfLane = ceil_div(kExperts, 32);
    constexpr int kBlock = kConfig.rows_per_block;
    int blocks[kOfLane];  // row blocks of each of this lane's experts
    u32 mine = 0;
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = lane() * kOfLane + i;
      blocks[i] = expert < kExperts ? ceil_div(rows_of(expert).count, kBlock) : 0;
      mine += static_cast<u32>(blocks[i]);
    }
    u32 before = mine;  // row blocks of all experts up to this lane's last
    VQ_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const u32 others = shuffle(before, lane() < step ? lane() : lane() - step);
      if (lane() >= step) before += others;
    }
    int left = slot - static_cast<int>(before - mine);
    u32 found = 0;  // in one lane at most: the expert's number and 1, and above it its block's
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      if (left >= 0 && left < blocks[i]) {
        found = static_cast<u32>(left) << kExpertBits | static_cast<u32>(lane() * kOfLane + i + 1);
      }
      left -= blocks[i];
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) found |= shuffle_xor(found, mask);
    if (found == 0) return {0, 0, 0};
    const ExpertRows all = rows_of(static_cast<int>(found & ((1u << kExpertBits) - 1)) - 1);
    const int begin = static_cast<int>(found >> kExpertBits) * kBlock;
    const int rest = all.count - begin;
    return {all.expert, all.first + begin, rest < kBlock ? rest : kBlock};
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

  // The arguments of a kernel for these rows of this expert alone: partials are those of its rows;
  // counters and the prepacked x, those of its slot.
  VQ_DEVICE LinearArgs alone(const ExpertRows& rows, int slot) const {
    LinearArgs own = args_;
    own.rows = rows.count;
    own.x += i64{rows.first} * kConfig.in_features;
    own.y += i64{rows.first} * y_columns(kConfig);
    if constexpr (kConfig.epilogue.residual) own.residual += i64{rows.first} * y_columns(kConfig);
    own.weights.codes += rows.expert * expert_words(kConfig);
    own.weights.codebooks += rows.expert * expert_codebook_elements(kConfig);
    if constexpr (kConfig.weights.stage_scales) {
      own.weights.scales += rows.expert * (expert_units(kConfig) * kConfig.weights.num_codebooks);
    }
    if constexpr (kConfig.output_scales) own.output_scales += rows.expert * kConfig.out_features;
    if constexpr (stores_partials(kConfig)) own.partials += i64{rows.first} * kConfig.out_features;
    if constexpr (kConfig.combine == Combine::last_block) {
      own.counters += slot * (counters(kConfig) / row_slots(kConfig));
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

// Calls act(args) for the rows of a slot, if there are any; with a single matrix, for its own
// arguments. All threads.
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

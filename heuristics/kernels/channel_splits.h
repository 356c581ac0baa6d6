// Into how many shares the channels of a head are split in dataflow channels (VQ-LLM VI-A).
//
// With the number of blocks given by the GPU, a block that has one of s shares of the channels
// loads one of s shares of the codebooks, and all blocks together load 1/s of what they would
// without; the reduction over the shares moves s times as much. The sum of both is least at
// s = sqrt(codebook traffic / reduction traffic). More shares than a head has codebooks load no
// less.
#pragma once

#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// Bytes that all blocks of a call move with one share.
struct SplitTraffic {
  double codebook_bytes = 0;
  double reduction_bytes = 0;
  int units = 1;  // codebooks of a head, among which the channels can be split
};

// The split of `feasible`, which is not empty, that moves least; the smaller on ties.
int round_split(const SplitTraffic& traffic, std::span<const int> feasible);

// Traffic of the key splits, and of the value splits, whose blocks each read the partial scores of
// `key_splits` shares; for `blocks` blocks of a kernel.
SplitTraffic key_split_traffic(const AttentionDecode& op, std::int64_t blocks);
SplitTraffic value_split_traffic(const AttentionDecode& op, std::int64_t blocks, int key_splits);

}  // namespace vqgen

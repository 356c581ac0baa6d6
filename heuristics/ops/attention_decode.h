// The plans of attention_decode: split over tokens so that the grid fills the GPU, heads of one KV
// head together so that a code is decoded once for all of them.
#pragma once

#include <cstdint>
#include <optional>

#include "core/check.h"

namespace vqgen {

// (head, sequence) blocks that a split has.
std::int64_t head_blocks(const AttentionDecode& op, const AttentionDecodePlan& plan);

// The plan of each dataflow, on its own terms. check() may refuse it, with the reason why the
// dataflow cannot do the problem.

// Each lane decodes keys; the general form.
AttentionDecodePlan choose_attention_lanes(const AttentionDecode& op, const GpuSpec& gpu);
// As many heads side by side as their score tables fit, in fp32. In f16, which rounds scores by
// more than a result in f16 may show, only where one head's do not fit and the result is bf16.
AttentionDecodePlan choose_attention_tables(const AttentionDecode& op, const GpuSpec& gpu);
// Channels split by the traffic of codebooks and partial scores (channel_splits.h).
AttentionDecodePlan choose_attention_channels(const AttentionDecode& op, const GpuSpec& gpu);

// Where the format's sub-vectors, the type and the memory allow it; else none.
std::optional<AttentionDecodePlan> choose_attention_fragments(const AttentionDecode& op,
                                                              const GpuSpec& gpu);

AttentionDecodePlan choose_attention(const AttentionDecode& op, const GpuSpec& gpu,
                                     AttentionDataflow dataflow);

// The one that is expected to be fastest: fragments where it can run, else lanes.
AttentionDecodePlan choose_attention_decode(const AttentionDecode& op, const GpuSpec& gpu);

}  // namespace vqgen

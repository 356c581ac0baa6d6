// The plan of attention_decode: split over tokens so that the grid fills the GPU, heads of one KV
// head together so that a code is decoded once for all of them. Dataflow fragments where it can
// run, else lanes.
#pragma once

#include <optional>

#include "core/check.h"

namespace vqgen {

AttentionDecodePlan choose_attention_lanes(const AttentionDecode& op, const GpuSpec& gpu);
// None where the format's sub-vectors, the type or the memory do not allow it.
std::optional<AttentionDecodePlan> choose_attention_fragments(const AttentionDecode& op,
                                                              const GpuSpec& gpu);

AttentionDecodePlan choose_attention_decode(const AttentionDecode& op, const GpuSpec& gpu);

}  // namespace vqgen

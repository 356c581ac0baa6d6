// The plan of attention_decode: split over tokens so that the grid fills the GPU, heads of one KV
// head together so that a code is decoded once for all of them.
#pragma once

#include "core/check.h"

namespace vqgen {

AttentionDecodePlan choose_attention_decode(const AttentionDecode& op, const GpuSpec& gpu);

}  // namespace vqgen

// Checkpoints of bitsandbytes with 4 bits (QLoRA): a Hugging Face folder whose linear layers NAME
// have
//
//   NAME.weight            U8 [out_features in_features / 2, 1], two weights in a byte, the first
//   in its
//                          upper half, as numbers of 16 levels
//   NAME.weight.quant_map  F32 [16], the levels of NF4 or FP4
//   NAME.weight.absmax     of each block of weights, F32, or U8 numbers of nested_quant_map F32
//   [256]
//                          times nested_absmax F32 of 256 of them each, plus nested_offset
//   NAME.weight.quant_state.bitsandbytes__nf4 or __fp4   U8, JSON
//
// A byte becomes a code of two numbers, and a block's absmax the f16 scale of a group of inputs.
#pragma once

#include <filesystem>

#include "quantizer/import/import_plan.h"
#include "quantizer/model_config.h"

namespace vqgen {

inline constexpr const char* kBitsandbytesMethod = "bitsandbytes";

// Requires a config with a quantization_config of this method. Errors as of import_model().
ImportPlan plan_bitsandbytes(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace vqgen

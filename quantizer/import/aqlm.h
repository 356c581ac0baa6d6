// AQLM checkpoints (Egiazarian et al., 2024), also with PV-tuning: a Hugging Face folder whose
// linear layers NAME have
//
//   NAME.codes      I8 or I16 [out_features, in_features / group, num_codebooks], two's complement
//   NAME.codebooks  F16 or BF16 [num_codebooks, 2^bits, 1, group]
//   NAME.scales     [out_features, 1, 1, 1]
//
// Codes of 8 and 16 bits are vqgen's rows, but for padding.
#pragma once

#include <filesystem>

#include "quantizer/import/import_plan.h"
#include "quantizer/model_config.h"

namespace vqgen {

inline constexpr const char* kAqlmMethod = "aqlm";

// Requires a config whose quant_method is kAqlmMethod. Errors as of import_model().
ImportPlan plan_aqlm(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace vqgen

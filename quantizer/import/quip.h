// QuIP# checkpoints (Tseng et al., 2024) with the codebook E8P12, or E8P12RVQ4B, which has a second
// stage of codes, right of the first ones in each row of Qidxs: a Hugging Face folder with
// "quip_params" in config.json, whose linear layers NAME have
//
//   NAME.Qidxs    I64 [out_features, in_features / 32], four codes of 8 inputs in a word
//   NAME.SU       [in_features], NAME.SV [out_features]: signs, or signs with scales
//   NAME.Wscale   [], NAME.codebook_id I64 []
//   NAME.scaleWH  [in_features], with "rescale_WH"
//   NAME.fuse_scales  [parts], of layers that are several: qkv_proj, upgate_proj
//
// Codes become vqgen's one to one. Layers that are several keep their rotation, which goes over all
// of their outputs; upgate_proj is called gate_up_proj, as servers call it.
#pragma once

#include <filesystem>

#include "quantizer/import/import_plan.h"
#include "quantizer/model_config.h"

namespace vqgen {

inline constexpr const char* kQuipKey = "quip_params";

// Requires a config with kQuipKey. Errors as of import_model().
ImportPlan plan_quip(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace vqgen

// A model in a GGUF file (gguf_file.h) as a model folder, whose linear layers keep the codes that a
// kernel reads (gguf_codes.h) and all else is dense 16-bit; without such layers, as a Hugging Face
// folder of dense weights.
#pragma once

#include <filesystem>
#include <optional>

#include "core/format/element.h"
#include "quantizer/import/import_plan.h"

namespace vqgen {

struct GgufOptions {
  std::optional<DType> dtype = {};  // without one, bf16 if some weights of the file are, else f16
  bool dense = false;               // all of them, also those with codes
};

// `like` may be empty. Errors as of import_model().
ImportPlan plan_gguf(const std::filesystem::path& path, const std::filesystem::path& like,
                     const GgufOptions& options);

}  // namespace vqgen

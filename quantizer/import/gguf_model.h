// A model in a GGUF file (gguf_file.h) as a Hugging Face folder of dense 16-bit weights.
#pragma once

#include <filesystem>
#include <optional>

#include "core/format/element.h"
#include "quantizer/import/import_plan.h"

namespace vqgen {

// `like` may be empty. Without a dtype, weights are bf16 if some are in the file, else f16. Errors
// as of import_model().
ImportPlan plan_gguf(const std::filesystem::path& path, const std::filesystem::path& like,
                     std::optional<DType> dtype);

}  // namespace vqgen

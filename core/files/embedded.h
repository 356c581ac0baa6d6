// Text files that travel inside the binary, so that it finds them wherever it is moved.
#pragma once

#include <span>
#include <string_view>

namespace vqgen {

struct EmbeddedFile {
  std::string_view path;  // below the folder that was embedded, such as "gpus/h200.json"
  std::string_view text;
};

// profiles/: gpus/*.json, formats/*.json, cost/*.json, sweeps/*.json and tuned/*.jsonl.
std::span<const EmbeddedFile> embedded_profiles();

}  // namespace vqgen

// Writes a safetensors file for a test.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/files/files.h"
#include "quantizer/safetensors.h"

namespace vqgen {

inline void write_safetensors(const std::filesystem::path& path, std::vector<TensorView> tensors,
                              const std::map<std::string, std::string>& metadata) {
  publish_file(path, serialize_safetensors(std::move(tensors), metadata));
}

}  // namespace vqgen

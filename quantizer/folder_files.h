// The files of a model's folder beside its tensors, and which files its tensors are in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/json/json.h"
#include "quantizer/safetensors.h"

namespace vqgen {

inline constexpr std::uint64_t kMostSmallFile = std::uint64_t{1} << 28;

// What a folder that is made of another takes from it, by names.
struct FolderFiles {
  std::vector<std::string> copied;  // tokenizers and settings
  std::uint64_t copied_bytes = 0;
  // Folders, hidden and large files, and other files of weights than those of the tensors.
  std::vector<std::string> left_out;
};

// The files of the model's folder but config.json and those that `tensors` is read from.
FolderFiles files_beside(const std::filesystem::path& folder, const SafetensorsFile& tensors);

// The files of a folder whose tensors are not read: all files of weights are left out.
FolderFiles files_beside(const std::filesystem::path& folder);

// Which file it is: its name and size, and a digest of its first and last bytes and some between.
Json identity_of(const std::filesystem::path& path);
// The identities of the files that tensors are read from.
Json identities_of(const SafetensorsFile& tensors);

}  // namespace vqgen

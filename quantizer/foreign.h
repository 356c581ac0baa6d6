// Identifies the file at a path that should hold tensors: a safetensors file, an index of shards, a
// folder of either, or another format, which is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace vqgen {

// `path`; of a folder its index of shards, or where it has none its one safetensors file.
// Error(bad_input) that names files where there are none or several.
std::filesystem::path tensors_at(const std::filesystem::path& path);

// True if the file is JSON, as an index is. Throws Error(bad_input) if it cannot be read.
bool is_shard_index(const std::filesystem::path& path);

// The "weight_map" of an index: names of tensors, each with the name of its shard beside the index.
// Error(bad_input) where it is damaged, or a shard's name leads out of the index's folder.
std::map<std::string, std::string> read_shard_index(const std::filesystem::path& path);

// The most of a file's first bytes that refuse_foreign() looks at.
inline constexpr std::uint64_t kForeignBytes = 64;

// Throws Error(bad_input) with the file's format and a remedy if its first bytes are those of a
// known other format.
void refuse_foreign(std::string_view begin, const std::string& source);

}  // namespace vqgen

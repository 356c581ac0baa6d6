// What stands at a path that is to hold tensors: a safetensors file, an index of shards, a folder
// of either, or the file of another format, which is refused by its name.
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

// Whether the file is JSON, as an index is. Error(bad_input) where it cannot be read.
bool is_shard_index(const std::filesystem::path& path);

// The "weight_map" of an index: names of tensors, each with the name of its shard beside the index.
// Error(bad_input) where it is damaged, or a shard's name leads out of the index's folder.
std::map<std::string, std::string> read_shard_index(const std::filesystem::path& path);

// The most of a file's first bytes that refuse_foreign() looks at.
inline constexpr std::uint64_t kForeignBytes = 64;

// Error(bad_input) that says what the file is, and what to do, where its first bytes are those of a
// known other format.
void refuse_foreign(std::string_view begin, const std::string& source);

}  // namespace vqgen

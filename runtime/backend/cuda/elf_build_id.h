// The GNU build id of an ELF file: tells two builds of a library apart whose version is the same.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace vqgen {

// Lower-case hex of the NT_GNU_BUILD_ID note; nullopt where the file is missing, is no 64-bit
// little-endian ELF, is malformed or has none. Reads headers and notes only.
std::optional<std::string> gnu_build_id(const std::filesystem::path& path);

// Whether the file can be read and begins like one.
bool is_elf(const std::filesystem::path& path);

}  // namespace vqgen

// NVRTC's library file, found and told apart without opening it: opening takes a process and 10 to
// 130 ms, and a kernel that is in the cache needs the compiler's identity alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace vqgen {

struct NvrtcFile {
  std::filesystem::path path;
  int major = 0;
  int minor = 0;
  std::string build;  // "build-id 65be..." or, where the file has no id, "size 5381..."
};

// What the process of NVRTC is told to open, in order, for the library or folder `path`; where that
// is empty, for the folder found by the build and the one of its own program, `beside`, if they
// have one. A name without a folder means the loader's own search path.
std::vector<std::filesystem::path> nvrtc_candidates(const std::filesystem::path& path,
                                                    const std::filesystem::path& beside);

// The build of the library at `path`.
std::string nvrtc_build(const std::filesystem::path& path);

// What would be opened of nvrtc_candidates() and say of itself, read from the disk. The version is
// that of the file's name, through links, or of the one libnvrtc-builtins.so.X.Y beside it. nullopt
// where only opening tells: the loader's search path comes first, the file is no ELF, or names no
// version.
std::optional<NvrtcFile> find_nvrtc(const std::filesystem::path& path,
                                    const std::filesystem::path& beside = {});

}  // namespace vqgen

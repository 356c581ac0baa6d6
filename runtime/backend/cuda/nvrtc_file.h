// The files of NVRTC: its library, found and told apart without opening it (opening takes a process
// and 10 to 130 ms, and a kernel that is in the cache needs the compiler's identity alone), and the
// program in which it runs, vqgen-nvrtc.
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

// Lower-case hex of the NT_GNU_BUILD_ID note of an ELF file, which tells two builds of a library
// apart whose version is the same; nullopt where the file is missing, is no 64-bit little-endian
// ELF, is malformed or has none. Reads headers and notes only.
std::optional<std::string> gnu_build_id(const std::filesystem::path& path);

// Where vqgen-nvrtc stands: `given` where it is not empty; else the first that is there of places
// beside the program or library that holds this function, in a build tree and in an installed copy,
// wherever that was moved to, and below the prefix that was configured. Error(device), with what
// was tried, where there is none.
std::string find_nvrtc_helper(const std::string& given);

// The folder of that; empty where there is none.
std::filesystem::path nvrtc_helper_folder(const std::string& given);

}  // namespace vqgen

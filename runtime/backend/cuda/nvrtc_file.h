// The files of NVRTC: its library, identified without opening it (opening needs a process, and a
// cached kernel needs the compiler's identity alone), and the program in which it runs,
// vqgen-nvrtc.
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

// What the NVRTC process should open, in order, for the library or folder `path`; if empty, the
// folder found by the build and that of its own program, `beside`, if they have one. A name without
// a folder means the loader's search path.
std::vector<std::filesystem::path> nvrtc_candidates(const std::filesystem::path& path,
                                                    const std::filesystem::path& beside);

// The build of the library at `path`.
std::string nvrtc_build(const std::filesystem::path& path);

// What would be opened of nvrtc_candidates(), with its identity read from disk. The version is that
// of the file name, through links, or of libnvrtc-builtins.so.X.Y beside it. nullopt if only
// opening tells: the loader's path comes first, or the file is no ELF or names no version.
std::optional<NvrtcFile> find_nvrtc(const std::filesystem::path& path,
                                    const std::filesystem::path& beside = {});

// Lower-case hex of the NT_GNU_BUILD_ID note of an ELF file, which tells two builds of a library
// apart whose version is the same; nullopt where the file is missing, is no 64-bit little-endian
// ELF, is malformed or has none. Reads headers and notes only.
std::optional<std::string> gnu_build_id(const std::filesystem::path& path);

// Path of vqgen-nvrtc: `given` if not empty; else the first that exists beside this program or
// library, in a build tree or an installed copy, wherever it was moved to, or below the configured
// prefix. Throws Error(device) with the places tried if there is none.
std::string find_nvrtc_helper(const std::string& given);

// The folder of that; empty where there is none.
std::filesystem::path nvrtc_helper_folder(const std::string& given);

}  // namespace vqgen

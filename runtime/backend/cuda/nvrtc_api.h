// NVRTC, opened at run time from wherever it stands.
#pragma once

#include <nvrtc.h>

#include <filesystem>
#include <string>
#include <vector>

#define VQGEN_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                \
  X(nvrtcGetErrorString)         \
  X(nvrtcGetNumSupportedArchs)   \
  X(nvrtcGetSupportedArchs)      \
  X(nvrtcCreateProgram)          \
  X(nvrtcDestroyProgram)         \
  X(nvrtcCompileProgram)         \
  X(nvrtcGetProgramLogSize)      \
  X(nvrtcGetProgramLog)          \
  X(nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN)

namespace vqgen {

struct NvrtcApi {
#define VQGEN_MEMBER(function) decltype(&::function) function = nullptr;
  VQGEN_NVRTC_FUNCTIONS(VQGEN_MEMBER)
#undef VQGEN_MEMBER

  std::filesystem::path path;  // of the library file that is loaded
  int major = 0;
  int minor = 0;
  std::string build;       // "build-id 65be..." or, where the file has no id, "size 5381..."
  std::vector<int> archs;  // 75, 80, ...: what it can compile for

  // Error(device) unless `result` is success.
  void check(nvrtcResult result, const char* call) const;
};

// Opens `path` (the library or its folder), or where that is empty the first found of: the folder
// of the build's toolkit, the loader's path, /usr/local/cuda. Error(device) lists what was tried.
// The library stays open for the life of the process. Thread-safe.
NvrtcApi open_nvrtc(const std::string& path);

}  // namespace vqgen

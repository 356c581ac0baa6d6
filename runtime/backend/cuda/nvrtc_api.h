// NVRTC, opened from wherever it stands. Of the helper process alone: while it compiles, NVRTC
// replaces the handlers of SIGINT and SIGTERM by its own, which may wait for a lock that the
// interrupted thread holds.
#pragma once

#include <nvrtc.h>

#include <stdexcept>
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

// One line that names the library and what is wrong with it.
struct NvrtcFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct NvrtcApi {
#define VQGEN_MEMBER(function) decltype(&::function) function = nullptr;
  VQGEN_NVRTC_FUNCTIONS(VQGEN_MEMBER)
#undef VQGEN_MEMBER

  std::string path;  // of the library file that is loaded
  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // 75, 80, ...: what it can compile for

  // NvrtcFault unless `result` is success.
  void check(nvrtcResult result, const char* call) const;
};

// The first of `candidates` that loads; a name without a folder means the loader's own search path.
// NvrtcFault, with what was tried, where none does, and where the one that does is no NVRTC. It
// stays open for the life of the process.
NvrtcApi open_nvrtc(const std::vector<std::string>& candidates);

}  // namespace vqgen

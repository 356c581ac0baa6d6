#include "runtime/backend/cuda/nvrtc_api.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "runtime/backend/cuda/nvrtc_file.h"

namespace vqgen {
namespace {

template <class Function>
void look_up(void* library, const char* name, const std::filesystem::path& path,
             Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(
        ErrorKind::device,
        fmt::format("{} has no {}: not NVRTC, or older than 11.2; install NVRTC 12 or newer",
                    path.string(), name));
  }
  function = reinterpret_cast<Function>(symbol);
}

// NVRTC opens its builtins by bare name when it compiles. A library of that name which is already
// loaded satisfies it, wherever both stand.
void preload_builtins(const NvrtcApi& api) {
  const auto builtins =
      api.path.parent_path() / fmt::format("libnvrtc-builtins.so.{}.{}", api.major, api.minor);
  ::dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

NvrtcApi read_api(void* library) {
  NvrtcApi api;
  Dl_info info{};
  if (::dladdr(::dlsym(library, "nvrtcVersion"), &info) != 0) api.path = info.dli_fname;
#define VQGEN_TEXT(text) #text
#define VQGEN_LOOK_UP(function) look_up(library, VQGEN_TEXT(function), api.path, api.function);
  VQGEN_NVRTC_FUNCTIONS(VQGEN_LOOK_UP)
#undef VQGEN_LOOK_UP
#undef VQGEN_TEXT
  api.check(api.nvrtcVersion(&api.major, &api.minor), "nvrtcVersion");
  int count = 0;
  api.check(api.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  api.archs.resize(static_cast<std::size_t>(count));
  api.check(api.nvrtcGetSupportedArchs(api.archs.data()), "nvrtcGetSupportedArchs");
  api.build = nvrtc_build(api.path);
  preload_builtins(api);
  return api;
}

}  // namespace

NvrtcApi open_nvrtc(const std::string& path) {
  std::vector<std::string> tried;
  for (const std::filesystem::path& candidate : nvrtc_candidates(path)) {
    void* const library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return read_api(library);
    const char* const reason = ::dlerror();
    std::error_code ignored;  // a library that is there but does not load deserves its reason
    const bool there = std::filesystem::exists(candidate, ignored);
    tried.push_back(there && reason != nullptr ? reason : candidate.string());
  }
  throw Error(ErrorKind::device,
              fmt::format("NVRTC, the CUDA run-time compiler, was not found; tried {}; install the "
                          "CUDA toolkit or the Python wheel nvidia-cuda-nvrtc, or give the path of "
                          "libnvrtc",
                          fmt::join(tried, ", ")));
}

void NvrtcApi::check(nvrtcResult result, const char* call) const {
  if (result == NVRTC_SUCCESS) return;
  throw Error(ErrorKind::device,
              fmt::format("{} of {}: {}", call, path.string(), nvrtcGetErrorString(result)));
}

}  // namespace vqgen

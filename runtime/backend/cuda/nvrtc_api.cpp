#include "runtime/backend/cuda/nvrtc_api.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

namespace vqgen {
namespace {

constexpr const char* kRemedy =
    "install the CUDA toolkit or the Python wheel nvidia-cuda-nvrtc, or set VQGEN_NVRTC to "
    "libnvrtc or its folder";

template <class Function>
void look_up(void* library, const char* name, const std::string& path, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw NvrtcFault(path + " has no " + name +
                     ": not NVRTC, or older than 11.2; set VQGEN_NVRTC to a libnvrtc of 12 or "
                     "newer, or to its folder");
  }
  function = reinterpret_cast<Function>(symbol);
}

// The loaded file, as the loader found it; `name` where it does not tell.
std::string file_of(void* library, const std::string& name) {
  link_map* map = nullptr;
  const bool told = ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  return told ? map->l_name : name;
}

// NVRTC opens its builtins by bare name when it compiles. A library of that name which is already
// loaded satisfies it, wherever both stand.
void preload_builtins(const NvrtcApi& api) {
  const std::size_t slash = api.path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : api.path.substr(0, slash + 1);
  const std::string builtins = folder + "libnvrtc-builtins.so." + std::to_string(api.major) + "." +
                               std::to_string(api.minor);
  ::dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

NvrtcApi read_api(void* library, const std::string& name) {
  NvrtcApi api;
  api.path = file_of(library, name);
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
  preload_builtins(api);
  return api;
}

}  // namespace

NvrtcApi open_nvrtc(const std::vector<std::string>& candidates) {
  std::string tried;
  for (const std::string& candidate : candidates) {
    void* const library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return read_api(library, candidate);
    const char* const reason = ::dlerror();
    // A library that is there but does not load deserves its reason.
    const bool there = ::access(candidate.c_str(), F_OK) == 0;
    tried += (tried.empty() ? "" : ", ") + (there && reason != nullptr ? reason : candidate);
  }
  throw NvrtcFault("NVRTC, the CUDA run-time compiler, was not found; tried " + tried + "; " +
                   kRemedy);
}

void NvrtcApi::check(nvrtcResult result, const char* call) const {
  if (result == NVRTC_SUCCESS) return;
  throw NvrtcFault(std::string(call) + " of " + path + ": " + nvrtcGetErrorString(result));
}

}  // namespace vqgen

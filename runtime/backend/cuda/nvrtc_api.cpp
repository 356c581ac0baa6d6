#include "runtime/backend/cuda/nvrtc_api.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "runtime/backend/cuda/elf_build_id.h"

namespace vqgen {
namespace {

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

// What to hand to dlopen, in order. A name without a folder means the loader's path.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> all;
  const auto add_folder = [&](const std::filesystem::path& folder) {
    for (const char* name : kNames) all.push_back(folder / name);
  };
  std::error_code ignored;
  if (!path.empty() && std::filesystem::is_directory(path, ignored)) {
    add_folder(path);
  } else if (!path.empty()) {
    all.push_back(path);
  } else {
    const std::filesystem::path hint = VQGEN_NVRTC_HINT;
    if (!hint.empty()) add_folder(hint);
    add_folder("");
    add_folder("/usr/local/cuda/lib64");
  }
  return all;
}

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

// The wheels of some 12.x have no build id; the file's size stands in.
std::string build_of(const std::filesystem::path& path) {
  if (const auto id = gnu_build_id(path)) return "build-id " + *id;
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  return code ? "build unknown" : fmt::format("size {}", bytes);
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
  api.build = build_of(api.path);
  preload_builtins(api);
  return api;
}

}  // namespace

NvrtcApi open_nvrtc(const std::string& path) {
  std::vector<std::string> tried;
  for (const std::filesystem::path& candidate : candidates(path)) {
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

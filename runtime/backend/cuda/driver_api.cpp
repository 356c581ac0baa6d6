#include "runtime/backend/cuda/driver_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/error.h"

namespace vqgen {
namespace {

constexpr const char* kRemedy = "install an NVIDIA driver for CUDA 12.4 or newer";

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(
        ErrorKind::device,
        fmt::format("the CUDA driver is too old: libcuda.so.1 has no {}; {}", name, kRemedy));
  }
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

DriverApi open_driver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    throw Error(ErrorKind::device,
                fmt::format("no CUDA driver: {}; {}", reason != nullptr ? reason : "libcuda.so.1",
                            kRemedy));
  }
  DriverApi api;
#define VQGEN_TEXT(text) #text
#define VQGEN_LOOK_UP(function) look_up(library, VQGEN_TEXT(function), api.function);
  VQGEN_DRIVER_FUNCTIONS(VQGEN_LOOK_UP)
  look_up(library, "cuEventElapsedTime", api.event_elapsed_time);
#undef VQGEN_LOOK_UP
#undef VQGEN_TEXT
  api.check(api.cuInit(0), "cuInit", "the CUDA driver");
  return api;
}

void DriverApi::check(CUresult result, const char* call, const std::string& what) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "unknown code";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS) text = "no description";
  throw Error(ErrorKind::device, fmt::format("{} on {}: {} ({}: {})", call, what, name,
                                             static_cast<int>(result), text));
}

}  // namespace vqgen

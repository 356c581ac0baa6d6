// The CUDA backend: NVRTC compiles, in a process of its own for each kernel, the driver API loads
// and launches. Both libraries are opened at first use, so that it may be made, and compile, where
// there is no GPU.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "runtime/backend/backend.h"

namespace vqgen {

struct CudaOptions {
  std::string nvrtc_path = {};  // libnvrtc or its folder; empty looks in the usual places
  std::string nvrtc_helper =
      {};  // vqgen-nvrtc, in which it runs; empty: where it goes with this code
  std::chrono::milliseconds compile_longest{600'000};  // a compilation; then it is ended
  int device = 0;                                      // as the driver counts devices
  // Uses the context current on the thread that first asks for the device, and that context's
  // device, instead of the primary context of number `device`.
  bool current_context = false;
  // From sm_90 on launches kernels as programmatic dependents (PDL): blocks may be placed while the
  // previous work on the stream ends, if it allows that, and wait for its end.
  bool dependent_launches = true;
};

// Never fails; what is missing is reported by the function that needs it.
std::unique_ptr<Backend> make_cuda_backend(CudaOptions options = {});

}  // namespace vqgen

// The CUDA driver, opened at run time, so that every binary starts on a machine without one; one
// GPU as it shows it; and the context that launches run in.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"

// Only entry points that drivers since CUDA 12.4 have. cuda.h renames some of these by macro
// (cuMemAlloc is cuMemAlloc_v2): an argument that is passed on is expanded first, so that members,
// calls and looked-up names all mean the declared ABI.
#define VQGEN_DRIVER_FUNCTIONS(X)                \
  X(cuInit)                                      \
  X(cuDriverGetVersion)                          \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetName)                             \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceTotalMem)                            \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuDevicePrimaryCtxRelease)                   \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuCtxGetCurrent)                             \
  X(cuCtxSetCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuStreamCreate)                              \
  X(cuStreamDestroy)                             \
  X(cuStreamSynchronize)                         \
  X(cuMemAlloc)                                  \
  X(cuMemFree)                                   \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemcpyDtoHAsync)                           \
  X(cuMemsetD8Async)                             \
  X(cuModuleLoadData)                            \
  X(cuModuleUnload)                              \
  X(cuModuleGetFunction)                         \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuFuncGetParamInfo)                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuLaunchKernelEx)                            \
  X(cuStreamIsCapturing)                         \
  X(cuStreamBeginCapture)                        \
  X(cuThreadExchangeStreamCaptureMode)           \
  X(cuStreamEndCapture)                          \
  X(cuGraphInstantiate)                          \
  X(cuGraphLaunch)                               \
  X(cuGraphExecDestroy)                          \
  X(cuGraphDestroy)                              \
  X(cuEventCreate)                               \
  X(cuEventDestroy)                              \
  X(cuEventRecord)

namespace vqgen {

struct DriverApi {
#define VQGEN_MEMBER(function) decltype(&::function) function = nullptr;
  VQGEN_DRIVER_FUNCTIONS(VQGEN_MEMBER)
#undef VQGEN_MEMBER
  // The first name of the function: drivers of CUDA 12 lack the _v2 that cuda.h of 13 maps it to.
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent begin, CUevent end) = nullptr;

  // Error(device) unless `result` is success: "CALL on WHAT: CODE (text)".
  void check(CUresult result, const char* call, const std::string& what) const;
};

// A device found, no context made yet. Immutable; thread-safe.
struct CudaDevice {
  DriverApi api;
  CUdevice handle = 0;
  int driver_version = 0;        // 12040 is CUDA 12.4
  CUcontext borrowed = nullptr;  // the caller's context; null: the device's primary one
  GpuSpec spec;
};

// Error(device) where there is no driver or no device of this number.
CudaDevice open_device(int ordinal);

// The device of the CUDA context current on this thread. The context is borrowed and must outlive
// the returned device. Throws Error(device) if no context is current.
CudaDevice open_current_device();

// The device's primary context, or the one that it borrows, and the one stream all work is queued
// on.
class CudaContext {
 public:
  explicit CudaContext(std::shared_ptr<const CudaDevice> device);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  // Makes the context current for the calling thread, and gives back what was current before. The
  // thread's capture mode is relaxed for as long: loading, allocating and freeing would otherwise
  // fail, and break the capture, while any thread captures in global mode.
  class Scope {
   public:
    explicit Scope(const CudaContext& context);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    const DriverApi& api_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's own while in scope
  };

  const DriverApi& api() const { return device_->api; }
  const CudaDevice& device() const { return *device_; }
  CUstream stream() const { return stream_; }
  CUcontext handle() const { return context_; }

  // Times a graph of what `queue` launches: timed_runs() with events around each replay, in
  // microseconds, after at least one replay and `warm_up_ms`. `check` gets each driver call's
  // result and throws. Context current; exceptions of `queue` pass through, capture ended.
  std::vector<double> time_us(const std::function<void()>& queue, int replays, double warm_up_ms,
                              const std::function<void(CUresult, const char*)>& check) const;

 private:
  void release() const;

  std::shared_ptr<const CudaDevice> device_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace vqgen

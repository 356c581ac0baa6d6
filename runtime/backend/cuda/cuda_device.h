// One GPU as the driver shows it, and the context that launches run in.
#pragma once

#include <memory>
#include <string>

#include "core/gpu/gpu_spec.h"
#include "runtime/backend/cuda/driver_api.h"

namespace vqgen {

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

// That of the context that is current on this thread, which is borrowed and outlives all that is
// made of it. Error(device) where none is.
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

 private:
  void release() const;

  std::shared_ptr<const CudaDevice> device_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace vqgen

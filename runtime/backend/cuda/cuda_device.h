// One GPU as the driver shows it, and the context that launches run in.
#pragma once

#include <memory>
#include <string>

#include "core/gpu_spec.h"
#include "runtime/backend/cuda/driver_api.h"

namespace vqgen {

// A device found, no context made yet. Immutable; thread-safe.
struct CudaDevice {
  DriverApi api;
  CUdevice handle = 0;
  int driver_version = 0;  // 12040 is CUDA 12.4
  GpuSpec spec;
};

// Error(device) where there is no driver or no device of this number.
CudaDevice open_device(int ordinal);

// The device's primary context and the one stream all work is queued on.
class CudaContext {
 public:
  explicit CudaContext(std::shared_ptr<const CudaDevice> device);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  // Makes the context current for the calling thread, and gives back what was current before.
  class Scope {
   public:
    explicit Scope(const CudaContext& context);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    const DriverApi& api_;
  };

  const DriverApi& api() const { return device_->api; }
  const CudaDevice& device() const { return *device_; }
  CUstream stream() const { return stream_; }

 private:
  std::shared_ptr<const CudaDevice> device_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace vqgen

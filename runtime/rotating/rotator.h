// Rows rotated on a device (templates/vq/rotation/rotation.cuh), around rotated weights.
#pragma once

#include <memory>

#include "core/format/element.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"

namespace vqgen {

struct RotatorShape {
  DType dtype = DType::f16;
  std::int64_t features = 0;
  bool back = false;  // signs o H x; else H^T (signs o x)
};

// Error(infeasible) for sizes that no matrix rotates.
void require_rotated(const RotatorShape& shape);

// The text for such rows, with an entry for few rows and one for many.
KernelSource rotation_source(const RotatorShape& shape, Machine machine, const std::string& arch);

class Rotator {
 public:
  // Compiles and loads. `backend` has a device and outlives the rotator, `cache` may be null.
  Rotator(Backend& backend, ArtifactCache* cache, const RotatorShape& shape);

  const RotatorShape& shape() const { return shape_; }
  // Queues y = x rotated on the caller's stream; without allocation, so that it may be captured.
  // x and y are [rows][features], signs [features]; y is not x. Thread-safe on a GPU.
  void enqueue(const void* x, const float* signs, void* y, std::int64_t rows, void* stream) const;

 private:
  Backend& backend_;
  RotatorShape shape_;
  KernelSource source_;
  std::unique_ptr<LoadedKernel> kernel_;
  DeviceBuffer table_;
};

}  // namespace vqgen

// The C functions of rotations.
#include <fmt/format.h>

#include <cstdint>

#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"
#include "runtime/rotating/rotator.h"

using namespace vqgen::library;

struct vqgen_rotator {
  vqgen_rotator(vqgen::Backend& own, vqgen::ArtifactCache* cache, const vqgen::RotatorShape& shape)
      : backend(own), rotator(own, cache, shape) {}

  vqgen::Backend& backend;
  vqgen::Rotator rotator;
};

namespace {

// Memory that kernels of the host backend may touch meanwhile; nothing on a GPU.
class Lent {
 public:
  Lent(vqgen::Backend& backend, const void* memory, std::size_t bytes)
      : backend_(backend), memory_(memory), bytes_(bytes) {
    backend_.lend(memory_, bytes_);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { backend_.give_back(memory_, bytes_); }

 private:
  vqgen::Backend& backend_;
  const void* memory_;
  std::size_t bytes_;
};

bool aligned(const void* memory, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % to == 0;
}

}  // namespace

vqgen_status vqgen_rotator_create(vqgen_runtime* runtime, int32_t element, int64_t features,
                                  int32_t back, void* stream, vqgen_rotator** rotator) {
  return guarded({runtime, rotator}, [&] {
    *rotator = nullptr;
    if (element != VQGEN_F16 && element != VQGEN_BF16) {
      return fail(VQGEN_BAD_INPUT, "rotation: element is neither VQGEN_F16 nor VQGEN_BF16");
    }
    const vqgen::RotatorShape shape{element == VQGEN_F16 ? vqgen::DType::f16 : vqgen::DType::bf16,
                                    features, back != 0};
    vqgen::require_rotated(shape);
    Registry& registry = *runtime->registry;
    if (registry.frozen()) {
      return fail(VQGEN_MISS, "the rotation is new and the runtime is frozen; make it before");
    }
    if (stream != nullptr && registry.backend().capturing(stream)) {
      return fail(
          VQGEN_CAPTURING,
          "the rotation is new and the stream is being captured; make it before the capture");
    }
    const auto one = registry.loading();
    *rotator = new vqgen_rotator(registry.backend(), registry.cache(), shape);
    return VQGEN_OK;
  });
}

void vqgen_rotator_release(vqgen_rotator* rotator) { delete rotator; }

vqgen_status vqgen_rotate(const vqgen_rotator* rotator, const void* x, const float* signs, void* y,
                          int64_t rows, void* stream) {
  if (rows == 0) return VQGEN_OK;
  return guarded({rotator, x, signs, y}, [&] {
    const std::int64_t features = rotator->rotator.shape().features;
    constexpr std::int64_t kMostRows = std::int64_t{1} << 31;
    if (rows < 0 || rows > kMostRows) return fail_range("rows", rows, 0, kMostRows);
    if (!aligned(x, 8)) return fail_argument(VQGEN_BAD_INPUT, "x", "is not aligned to 8 bytes");
    if (!aligned(y, 8)) return fail_argument(VQGEN_BAD_INPUT, "y", "is not aligned to 8 bytes");
    if (!aligned(signs, 16)) {
      return fail_argument(VQGEN_BAD_INPUT, "signs", "is not aligned to 16 bytes");
    }
    if (x == y) return fail(VQGEN_BAD_INPUT, "rotation: y is x; give it memory of its own");
    const auto bytes = static_cast<std::size_t>(rows * features) * 2;
    const Lent of_x(rotator->backend, x, bytes), of_y(rotator->backend, y, bytes),
        of_signs(rotator->backend, signs, static_cast<std::size_t>(features) * sizeof *signs);
    rotator->rotator.enqueue(x, signs, y, rows, stream);
    return VQGEN_OK;
  });
}

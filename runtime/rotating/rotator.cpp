#include "runtime/rotating/rotator.h"

#include <fmt/format.h>
#include <vq/args/rotation.h>

#include <array>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "generator/generate.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMostFeatures = 1 << 24;
constexpr std::int64_t kFewRows = 8;

// The launch of up to some rows, and of more, which takes so many at once.
struct RotationLaunch {
  unsigned rows;  // of the grid
  int most;       // numbers in shared memory
};
constexpr std::array<RotationLaunch, 2> kLaunches{{{kFewRows, 2048}, {256, 8192}}};

int order_of(const RotatorShape& shape) { return vq::rotation_order(shape.features); }

int bits_of(const RotatorShape& shape) {
  return std::countr_zero(static_cast<std::uint64_t>(shape.features / order_of(shape)));
}

// The signs of the matrix of order m, or of its transpose.
std::vector<vq::u32> table_of(int order, bool transposed) {
  const int words = vq::rotation_table_words(order);
  std::vector<vq::u32> table(static_cast<std::size_t>(order * words));
  for (int row = 0; row < order; ++row) {
    for (int column = 0; column < order; ++column) {
      const bool negative = transposed ? vq::rotation_is_negative(order, column, row)
                                       : vq::rotation_is_negative(order, row, column);
      const auto place = static_cast<std::size_t>(row * words + column / 32);
      if (negative) table[place] |= vq::u32{1} << column % 32;
    }
  }
  return table;
}

}  // namespace

void require_rotated(const RotatorShape& shape) {
  const bool known = shape.features >= 1 && shape.features <= kMostFeatures &&
                     order_of(shape) > 0 && bits_of(shape) >= 2;
  if (known) return;
  throw Error(
      ErrorKind::infeasible,
      fmt::format("rotation: no matrix rotates {} features; give 1, 12, 20, 28, 36, 52, 60, "
                  "108, 140, 156 or 172 times a power of two from 4 on",
                  shape.features));
}

KernelSource rotation_source(const RotatorShape& shape, Machine machine, const std::string& arch) {
  require_rotated(shape);
  const int order = order_of(shape), bits = bits_of(shape);
  KernelSource source;
  source.op = "rotation";
  source.machine = machine;
  source.arch = arch;
  source.text = template_text("vq/rotation/rotation.cuh", machine) + "#line 1 \"entries\"\n";
  source.args_bytes = sizeof(vq::RotationArgs);
  for (const RotationLaunch& launch : kLaunches) {
    const int low = vq::rotation_low_bits(order, bits, launch.most);
    const std::string name =
        fmt::format("rotate_{}{}_{}_rows{}", shape.features, shape.back ? "_back" : "",
                    enum_name(shape.dtype), launch.rows);
    source.entries.push_back({name, Dim3{1u << (bits - low), launch.rows, 1}, vq::kRotationThreads,
                              vq::rotation_shared_bytes(order, low)});
    source.text += fmt::format(
        "VQ_KERNEL({}, {}, vq::RotationArgs) {{ vq::rotate_rows<vq::Element::{}, {}, {}, {}, "
        "{}>(args); }}\n",
        name, vq::kRotationThreads, enum_name(shape.dtype), shape.back, order, bits, low);
  }
  return source;
}

Rotator::Rotator(Backend& backend, ArtifactCache* cache, const RotatorShape& shape)
    : backend_(backend), shape_(shape) {
  require_rotated(shape);
  const std::optional<GpuSpec> device = backend.device();
  if (!device) throw device_error("rotation: this machine has no device; use the host backend");
  source_ = rotation_source(shape, backend.machine(),
                            backend.machine() == Machine::cuda ? device->arch : "host");
  kernel_ = backend.load(compile_cached(backend, source_, cache).artifact, source_);
  const std::vector<vq::u32> table = table_of(order_of(shape), !shape.back);
  table_ = DeviceBuffer(backend, table.size() * sizeof(vq::u32));
  backend.upload(table_.data(), std::as_bytes(std::span(table)));
}

void Rotator::enqueue(const void* x, const float* signs, void* y, std::int64_t rows,
                      void* stream) const {
  if (rows == 0) return;
  const std::size_t entry = rows > kFewRows ? 1 : 0;
  vq::RotationArgs args{};
  args.x = static_cast<const vq::u16*>(x);
  args.signs = signs;
  args.table = static_cast<const vq::u32*>(table_.data());
  args.y = static_cast<vq::u16*>(y);
  args.rows = rows;
  args.scale = 1 / std::sqrt(static_cast<float>(shape_.features));
  args.rows_at_once = static_cast<vq::i32>(kLaunches[entry].rows);
  kernel_->enqueue(entry, std::as_bytes(std::span(&args, 1)), stream);
}

}  // namespace vqgen

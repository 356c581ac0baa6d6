#include "python/src/overlap.h"

#include <algorithm>

#include "python/src/object.h"

namespace vqgen::python {
namespace {

constexpr std::int64_t kTried = 16;

std::int64_t floor_divided(std::int64_t value, std::int64_t by) {
  return value / by - (value % by < 0 ? 1 : 0);
}

}  // namespace

Region::Region(const Tensor& tensor)
    : begin_(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data()))) {
  const DLTensor& view = tensor.view();
  const std::int64_t element = view.dtype.bits / 8;
  std::vector<Dimension> all;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return;
    if (view.shape[i] > 1) all.push_back({view.shape[i], tensor.stride(i) * element});
  }
  std::sort(all.begin(), all.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  run_ = element;
  for (const Dimension& each : all) {
    repeats_ |= each.stride < span();
    if (each.stride <= run_ || first_ == 0) {
      run_ += (each.count - 1) * each.stride;
    } else {
      dimensions_[static_cast<std::size_t>(--first_)] = each;
    }
  }
}

std::int64_t Region::span() const {
  std::int64_t bytes = run_;
  for (auto i = static_cast<std::size_t>(first_); i < kMost; ++i) {
    bytes += (dimensions_[i].count - 1) * dimensions_[i].stride;
  }
  return bytes;
}

Region Region::inner(std::int64_t offset) const {
  Region rest = *this;
  rest.begin_ += offset;
  ++rest.first_;
  return rest;
}

bool Region::meets(const Region& other) const {
  if (run_ == 0 || other.run_ == 0 || begin_ + span() <= other.begin_ ||
      other.begin_ + other.span() <= begin_) {
    return false;
  }
  if (first_ == kMost && other.first_ == kMost) return true;
  if (outer_stride() < other.outer_stride()) return other.meets(*this);
  const std::int64_t stride = outer_stride();
  const bool alike = other.outer_stride() == stride;
  const Region own = inner(0), others = alike ? other.inner(0) : other;
  // The places of one's outermost index, less those of the other's where both have it, at which
  // what lies in them may meet.
  const std::int64_t apart = others.begin_ - own.begin_;
  const std::int64_t least =
      std::max(alike ? 1 - other.outer_count() : 0, floor_divided(apart - own.span(), stride) + 1);
  const std::int64_t most =
      std::min(outer_count() - 1, floor_divided(apart + others.span() - 1, stride));
  if (most - least >= 2 && other.first_ == kMost) return true;  // one of them is inside
  if (most - least >= kTried) return false;
  for (std::int64_t i = least; i <= most; ++i) {
    if (inner(i * stride).meets(others)) return true;
  }
  return false;
}

}  // namespace vqgen::python

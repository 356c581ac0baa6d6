// Where the elements of an array lie, and whether two arrays share memory.
#pragma once

#include <array>
#include <cstdint>

#include "python/src/tensor.h"

namespace vqgen::python {

// Runs of bytes that repeat at the strides of a tensor's outer dimensions. Views of one tensor that
// lie between each other, as keys and values of a page do, share nothing.
class Region {
 public:
  explicit Region(const Tensor& tensor);

  // True if two indices of the tensor are one place.
  bool repeats() const { return repeats_; }
  // True if a byte belongs to both. Two that lie between each other often, at unlike strides, count
  // as apart.
  bool meets(const Region& other) const;

 private:
  struct Dimension {
    std::int64_t count, stride;  // bytes; strides descend
  };
  static constexpr int kMost = 8;

  Region inner(std::int64_t offset) const;  // without the outermost dimension
  std::int64_t span() const;                // bytes from the first to behind the last
  std::int64_t outer_stride() const { return first_ == kMost ? 0 : dimensions_[index()].stride; }
  std::int64_t outer_count() const { return first_ == kMost ? 1 : dimensions_[index()].count; }
  std::size_t index() const { return static_cast<std::size_t>(first_); }

  std::int64_t begin_ = 0;
  std::int64_t run_ = 0;  // bytes; 0 where there are no elements
  int first_ = kMost;     // of the dimensions
  std::array<Dimension, kMost> dimensions_{};
  bool repeats_ = false;
};

}  // namespace vqgen::python

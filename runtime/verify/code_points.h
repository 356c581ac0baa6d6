// What each code of a tensor stands for, and how near the nearest of them is: what codes that a
// kernel makes are judged by. In double, and by looking at all entries.
#pragma once

#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// A book is number unit * residuals + stage.
class CodePoints {
 public:
  // Keeps a reference to `tensor`, which must outlive it and be one that RowDecoder takes.
  explicit CodePoints(const QuantizedTensor& tensor);

  // [vector_size], the stage's scale included. Thread-safe, as all below.
  std::vector<double> point(std::int64_t book, std::uint32_t code) const;

  // Of `x`, [vector_size], to the nearest point of any code.
  double least_distance(std::int64_t book, std::span<const double> x) const;

 private:
  double scale_of(std::int64_t book) const;
  std::span<const double> entry(std::int64_t book, std::int64_t number) const;

  const QuantizedTensor& tensor_;
  std::vector<double> entries_;  // [units][residuals][entries][vector_size]
};

}  // namespace vqgen

// The problem of weight_dequantize.
#pragma once

#include <cstdint>
#include <tuple>

#include "core/format/element.h"
#include "core/format/vq_format.h"

namespace vqgen {

// Rows of a quantized matrix as a dense one.
struct WeightRowsShape {
  std::int64_t rows = 0;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;

  static constexpr auto fields() {
    using S = WeightRowsShape;
    return std::make_tuple(
        field("rows", &S::rows, required(1, 1 << 24), "rows of W that one call writes, at most"),
        field("out_features", &S::out_features, required(1, 1 << 24), "rows of W"),
        field("in_features", &S::in_features, required(1, 1 << 24), "columns of W"));
  }
  bool operator==(const WeightRowsShape&) const = default;
};

// Turns rows of what gemv and gemm read into dense ones for any GEMM.
struct WeightDequantize {
  static constexpr const char* kOp = "weight_dequantize";
  DType dtype = DType::f16;
  WeightRowsShape shape;
  VqFormat weights;
  // 16-bit elements that a call writes.
  double elements() const {
    return static_cast<double>(shape.rows) * static_cast<double>(shape.in_features);
  }
  bool operator==(const WeightDequantize&) const = default;
};

}  // namespace vqgen

// gemv and gemm: products with quantized weights, and what becomes of them before they are stored.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "core/format/element.h"
#include "core/format/vq_format.h"

namespace vqgen {

// Limits of MoE (grouped) GEMMs.
inline constexpr int kMostExperts = 512;
inline constexpr int kMostExpertRows = 64;

// The activation of gate rows: y = gate(gate rows) times up rows. none: each row of W is a column
// of y.
enum class Gate { none, silu };
template <>
inline constexpr auto enum_names<Gate> = std::array{"none", "silu"};

// y = x W^T with one matrix; or with a matrix per expert, each for its own rows of x, which are
// sorted by expert (MoE).
struct LinearShape {
  int rows = 0;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  int experts = 0;
  int total_rows = 0;
  Gate gate = Gate::none;
  int gate_rows = 1;
  double multiplier = 1;
  bool residual = false;

  std::int64_t y_columns() const { return gate == Gate::none ? out_features : out_features / 2; }
  bool grouped() const { return experts > 0; }
  // Matrices, and rows of x that a call has at most.
  int matrices() const { return std::max(experts, 1); }
  int call_rows() const { return !grouped() ? rows : total_rows > 0 ? total_rows : experts * rows; }
  // Matrices that a call can have rows for.
  int most_touched() const { return std::min(matrices(), call_rows()); }

  static constexpr auto fields() {
    using S = LinearShape;
    return std::make_tuple(
        field(
            "m", &S::rows, required(1, 256),
            "rows of x, of one expert at most: 1..8 for gemv, 2..256 for gemm, ..64 with experts"),
        field("out_features", &S::out_features, required(1, 1 << 24), "rows of W"),
        field("in_features", &S::in_features, required(1, 1 << 24), "columns of W"),
        field("experts", &S::experts, silent_in(0, kMostExperts),
              "matrices of a mixture of experts; 0: one matrix for all rows"),
        field("total_rows", &S::total_rows, silent_in(0, kMostExperts * kMostExpertRows),
              "rows of x of all experts together, at most; 0: experts times rows"),
        field("gate", &S::gate, silent(),
              "silu: y = silu(gate rows) times up rows of W; y has out_features / 2 columns"),
        field(
            "gate_rows", &S::gate_rows, silent_in(1, 1 << 23),
            "gate rows that follow each other in W, before as many up rows; out_features / 2 where "
            "all gate rows come first"),
        field("multiplier", &S::multiplier, silent_in(1e-6, 1e6),
              "c: y = c x W^T (Granite's residual_multiplier)"),
        field("residual", &S::residual, silent(),
              "true: an argument of the shape of y is added, which y may overwrite"));
  }
  bool operator==(const LinearShape&) const = default;
};

// The common part of gemv and gemm: all but their row counts.
struct Linear {
  DType dtype = DType::f16;
  LinearShape shape;
  VqFormat weights;
  bool operator==(const Linear&) const = default;
};

// Few rows of x: the weights are read once and nothing else counts.
struct Gemv : Linear {
  static constexpr const char* kOp = "gemv";
  static constexpr int kLeastRows = 1;
  static constexpr int kMostRows = 8;
  bool operator==(const Gemv&) const = default;
};

// More rows, on tensor cores.
struct Gemm : Linear {
  static constexpr const char* kOp = "gemm";
  static constexpr int kLeastRows = 2;
  static constexpr int kMostRows = 256;
  bool operator==(const Gemm&) const = default;
};

// What is wrong with the experts and the gate of a shape, and the field that has it.
std::optional<FormatFault> linear_fault(const LinearShape& shape);

}  // namespace vqgen

// The problem of attention_merge.
#pragma once

#include <cstdint>
#include <tuple>

#include "core/format/element.h"
#include "core/json/fields.h"

namespace vqgen {

// Results of attention over disjoint sets of tokens, to be made one.
struct MergeShape {
  std::int64_t rows = 0;
  int heads = 0;
  int head_dim = 0;
  int parts = 0;

  static constexpr auto fields() {
    using S = MergeShape;
    return std::make_tuple(
        field("rows", &S::rows, required(1, 1 << 24), "query tokens of all sequences, at most"),
        field("heads", &S::heads, required(1, 65535), "heads of the query"),
        field("head_dim", &S::head_dim, required(1, 1024),
              "channels per head of results: of an attention its value_head_dim"),
        field("parts", &S::parts, required(2, 8), "results that become one"));
  }
  bool operator==(const MergeShape&) const = default;
};

// Merges results by their log-sum-exp. Nothing is quantized: an op without operands.
struct AttentionMerge {
  static constexpr const char* kOp = "attention_merge";
  DType dtype = DType::f16;
  MergeShape shape;
  // Bytes of a result, its log-sum-exp included, and those that a call moves.
  double part_bytes() const {
    return static_cast<double>(shape.rows) * shape.heads * (2.0 * shape.head_dim + 4);
  }
  double bytes() const { return (shape.parts + 1) * part_bytes(); }
  bool operator==(const AttentionMerge&) const = default;
};

}  // namespace vqgen

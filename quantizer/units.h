// Tensors of floats, and which codebook set ("unit") serves which elements:
// templates/vq/layout/format.h, as a partition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/format/vq_format.h"

namespace vqgen {

// A tensor as floats, on its way into or out of the quantizer. Owned, plain.
//
// KV cache: [batch][kv_heads][tokens][head_dim]. Weights: batch = heads = 1, rows output features.
struct FloatTensor {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<float> data;

  std::int64_t row_count() const { return batch * heads * rows; }
  // Row `index` of row_count(), counted through batch, heads and rows.
  std::span<float> row(std::int64_t index) {
    return std::span(data).subspan(static_cast<std::size_t>(index * columns),
                                   static_cast<std::size_t>(columns));
  }
  std::span<const float> row(std::int64_t index) const {
    return std::span(data).subspan(static_cast<std::size_t>(index * columns),
                                   static_cast<std::size_t>(columns));
  }
  // Head of row `index`.
  std::int64_t head_of(std::int64_t index) const { return index / rows % heads; }
};

// `tensor` without the mean of each head and channel over all batches and rows: of keys what
// softmax sees, since it cancels what all tokens' scores share.
FloatTensor centered(FloatTensor tensor);
// The share of the squares that this takes away, 0 to 1.
double common_share(const FloatTensor& tensor);

// The part of a tensor that one unit serves, in all of its batches. Ends are exclusive.
struct UnitExtent {
  std::int64_t head_begin, head_end;
  std::int64_t row_begin, row_end;
  std::int64_t column_begin, column_end;
  std::int64_t elements() const {
    return (head_end - head_begin) * (row_end - row_begin) * (column_end - column_begin);
  }
};

// Units tile [heads][rows][columns] in this order, the last axis fastest; units at the edges may be
// smaller.
struct UnitMap {
  std::int64_t heads, rows, columns;
  std::int64_t unit_heads, unit_rows, unit_columns;

  std::int64_t units() const;
  UnitExtent extent(std::int64_t unit) const;
};

// Throws Error(bad_input) that names `where` if vector_size does not divide a row and a unit's part
// of it, or tiles have no size or are in a tensor with heads.
UnitMap unit_map(const VqFormat& format, std::int64_t heads, std::int64_t rows,
                 std::int64_t columns, const std::string& where);

// Gives each 0 among `sizes`, of what nothing is known, the least that is not 0 of the same
// `together` that follow each other, so that a query that takes them loses nothing to it; where all
// are 0 they stay. `together` divides their number; none is below 0.
void fill_dead(std::span<float> sizes, std::size_t together);

// Calls visit(row, column) for each sub-vector of a unit, where `row` counts through batch, heads
// and rows as in FloatTensor, and `column` is the sub-vector's first.
template <class Visit>
void for_each_sub_vector(const UnitMap& map, const UnitExtent& extent, std::int64_t batch,
                         int vector_size, Visit&& visit) {
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    for (std::int64_t head = extent.head_begin; head < extent.head_end; ++head) {
      const std::int64_t first = (sequence * map.heads + head) * map.rows;
      for (std::int64_t row = extent.row_begin; row < extent.row_end; ++row) {
        for (std::int64_t column = extent.column_begin; column < extent.column_end;
             column += vector_size) {
          visit(first + row, column);
        }
      }
    }
  }
}

}  // namespace vqgen

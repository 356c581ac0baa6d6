// A tensor as floats, on its way into or out of the quantizer. Owned, plain.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

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

}  // namespace vqgen

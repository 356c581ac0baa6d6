// What a quantized tensor says, in double precision, read in the plainest way: a code bit by bit, a
// row as a sum of entries over its stages. The judge of kernels and packers, so it shares no code
// with either; the orders that it reads are those of templates/vq/layout/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/quantized_tensor.h"

namespace vqgen {

// The code that stands in bits [bit, bit + index_bits) of a packed row.
std::uint32_t read_code(std::span<const std::uint32_t> row, std::int64_t bit, int index_bits);

// The codebook set that serves an element: by head and channel group (KV cache), by channel group
// or tile (weights).
std::int64_t unit_of(const QuantizedTensor& tensor, std::int64_t head, std::int64_t row,
                     std::int64_t column);

// The element that packed bits stand for.
inline double element_value(DType dtype, std::uint16_t bits) {
  return static_cast<double>(element_to_float(dtype, bits));
}

class RowDecoder {
 public:
  // Keeps a reference to `tensor`, which must outlive it, and expands the codebooks, times their
  // stage scales, to doubles. Throws Error(bad_input) where sizes contradict each other, and
  // Error(infeasible) for a decoder or entry type that 16-bit tables cannot express.
  explicit RowDecoder(const QuantizedTensor& tensor);

  // out[column] = sum over stages of scale * entry. `out` has tensor.columns elements. Thread-safe.
  void decode(std::int64_t sequence, std::int64_t head, std::int64_t row,
              std::span<double> out) const;

 private:
  const QuantizedTensor& tensor_;
  std::vector<double> entries_;  // [units][residuals][entries][vector_size]
};

}  // namespace vqgen

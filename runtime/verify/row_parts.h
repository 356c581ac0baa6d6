// Keys or values in parts as the judge reads them, in the plainest way: the order is that of
// templates/vq/layout/parts.h, and no code is shared with kernels or quantizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Each part as a tensor of its own, whose codes are those of `codes`. Error(bad_input) where sizes
// contradict each other.
std::vector<QuantizedTensor> split_rows(const QuantizedTensor& tensor,
                                        std::span<const std::uint32_t> codes);

// The inverse, of parts with codes.
QuantizedTensor join_rows(const VqFormat& format, std::span<const QuantizedTensor> parts,
                          std::int64_t columns);

// The part's channels of rows of `head_dim` numbers.
template <class T>
std::vector<std::remove_const_t<T>> split_elements(std::span<T> rows, std::int64_t head_dim,
                                                   const VqFormat& part) {
  std::vector<std::remove_const_t<T>> elements;
  for (std::int64_t row = 0; row < std::ssize(rows); row += head_dim) {
    for (const int channel : part.channels) {
      elements.push_back(rows[static_cast<std::size_t>(row + channel)]);
    }
  }
  return elements;
}

}  // namespace vqgen

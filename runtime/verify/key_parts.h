// Keys in parts as the judge reads them, in the plainest way: the order is that of
// templates/vq/layout/parts.h, and no code is shared with kernels or quantizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Each part as a tensor of its own, whose codes are those of `codes`. Error(bad_input) where sizes
// contradict each other.
std::vector<QuantizedTensor> split_keys(const QuantizedTensor& keys,
                                        std::span<const std::uint32_t> codes);

// The inverse, of parts with codes.
QuantizedTensor join_keys(const VqFormat& format, std::span<const QuantizedTensor> parts,
                          std::int64_t columns);

// The part's channels of rows of `head_dim` elements.
std::vector<std::uint16_t> split_elements(std::span<const std::uint16_t> rows,
                                          std::int64_t head_dim, const VqFormat& part);

}  // namespace vqgen

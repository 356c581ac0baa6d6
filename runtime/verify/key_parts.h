// Keys in parts as the judge reads them, in the plainest way: the order is that of
// templates/vq/layout/parts.h, and kernels and quantizer share no code with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Each part as a tensor with its share of `codes`. Throws Error(bad_input) if sizes contradict each
// other.
std::vector<QuantizedTensor> split_keys(const QuantizedTensor& keys,
                                        std::span<const std::uint32_t> codes);

// The inverse, for parts with codes.
QuantizedTensor join_keys(const VqFormat& format, std::span<const QuantizedTensor> parts,
                          std::int64_t columns);

// The part's channels, out of rows of `head_dim` elements.
std::vector<std::uint16_t> split_elements(std::span<const std::uint16_t> rows,
                                          std::int64_t head_dim, const VqFormat& part);

}  // namespace vqgen

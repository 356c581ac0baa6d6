// Packed codes, a row or a tensor's: order of bits and words in templates/vq/layout/codes.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// 32-bit words that `codes` codes of `index_bits` bits take.
std::int64_t packed_words(std::int64_t codes, int index_bits);

// Writes exactly packed_words(codes.size(), index_bits) words; padding bits are zero. Requires
// 2 <= index_bits <= 16, codes below 2^index_bits, and words.size() to match.
void pack_row(std::span<const std::uint32_t> codes, int index_bits, std::span<std::uint32_t> words);

// The inverse; padding bits are ignored, and no word past the row's last is read.
void unpack_row(std::span<const std::uint32_t> words, int index_bits,
                std::span<std::uint32_t> codes);

// Codes of all rows of a tensor, one an element: [batch x heads x rows][sub-vector][stage],
// whatever the layout. pack_codes() makes tensor.codes of them, sizes and format being set.
std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor);
void pack_codes(std::span<const std::uint32_t> codes, QuantizedTensor& tensor);

}  // namespace vqgen

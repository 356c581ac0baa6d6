// Packed codes, a row or a tensor's: order of bits and words in templates/vq/layout/codes.h; and
// from one layout into another (core/format/vq_format.h): a permutation of words, but for
// padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Writes exactly the words that the codes take, vq::row_words(codes.size(), 1, 1, index_bits);
// padding bits are zero. Requires 2 <= index_bits <= 18, codes below 2^index_bits, and words.size()
// to match.
void pack_row(std::span<const std::uint32_t> codes, int index_bits, std::span<std::uint32_t> words);

// The inverse; padding bits are ignored, and no word past the row's last is read.
void unpack_row(std::span<const std::uint32_t> words, int index_bits,
                std::span<std::uint32_t> codes);

// Codes of all rows of a tensor, one an element: [batch x heads x rows][sub-vector][stage],
// whatever the layout. pack_codes() makes tensor.codes of them, sizes and format being set.
std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor);
void pack_codes(std::span<const std::uint32_t> codes, QuantizedTensor& tensor);

// Rows of packed codes, of each of `heads` heads; of weights, one.
struct CodeRows {
  std::int64_t heads = 1;
  std::int64_t rows = 0;
  std::int64_t row_words = 0;
};

// Words that they take, padding of each head included. Error(bad_input) for a layout that there is
// not, for sizes below 1 and for more words than any memory has.
std::int64_t layout_words(const CodeLayout& layout, const CodeRows& sizes);

// Writes all of `to`, padding as zeros; what is padding in `from` is not read. The two do not
// overlap. Error(bad_input), and nothing written, where sizes are not layout_words().
void repack(std::span<const std::uint32_t> from, const CodeLayout& from_layout,
            std::span<std::uint32_t> to, const CodeLayout& to_layout, const CodeRows& sizes);

// A tensor's codes and its format. Leaves what has that layout already as it is.
void repack(QuantizedTensor& tensor, const CodeLayout& layout);

}  // namespace vqgen

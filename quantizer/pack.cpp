#include "quantizer/pack.h"

#include <vq/layout/codes.h>

#include "quantizer/repack.h"

namespace vqgen {
namespace {

// Sizes of a tensor's rows, in codes, words and rows.
struct PackedRows {
  explicit PackedRows(const QuantizedTensor& t)
      : codes(static_cast<std::size_t>(t.columns / t.format.vector_size * t.format.residuals)),
        words(static_cast<std::size_t>(t.row_words)),
        rows(static_cast<std::size_t>(t.batch * t.heads * t.rows)) {}
  std::size_t codes, words, rows;
};

}  // namespace

std::int64_t packed_words(std::int64_t codes, int index_bits) {
  return vq::row_words(codes, 1, 1, index_bits);
}

void pack_row(std::span<const std::uint32_t> codes, int index_bits,
              std::span<std::uint32_t> words) {
  std::uint64_t pending = 0;
  int bits = 0;
  std::size_t word = 0;
  for (const std::uint32_t code : codes) {
    pending |= std::uint64_t{code} << bits;
    bits += index_bits;
    if (bits >= 32) {
      words[word++] = static_cast<std::uint32_t>(pending);
      pending >>= 32;
      bits -= 32;
    }
  }
  if (bits > 0) words[word] = static_cast<std::uint32_t>(pending);
}

void unpack_row(std::span<const std::uint32_t> words, int index_bits,
                std::span<std::uint32_t> codes) {
  const std::uint32_t mask = (1u << index_bits) - 1;
  std::uint64_t pending = 0;
  int bits = 0;
  std::size_t word = 0;
  for (std::uint32_t& code : codes) {
    if (bits < index_bits) {
      pending |= std::uint64_t{words[word++]} << bits;
      bits += 32;
    }
    code = static_cast<std::uint32_t>(pending) & mask;
    pending >>= index_bits;
    bits -= index_bits;
  }
}

std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor) {
  if (!tensor.format.layout.plain()) {
    QuantizedTensor plain = tensor;
    repack(plain, CodeLayout{});
    return unpack_codes(plain);
  }
  const PackedRows sizes(tensor);
  std::vector<std::uint32_t> codes(sizes.rows * sizes.codes);
  for (std::size_t row = 0; row < sizes.rows; ++row) {
    unpack_row(std::span(tensor.codes).subspan(row * sizes.words, sizes.words),
               tensor.format.index_bits, std::span(codes).subspan(row * sizes.codes, sizes.codes));
  }
  return codes;
}

void pack_codes(std::span<const std::uint32_t> codes, QuantizedTensor& tensor) {
  const CodeLayout layout = tensor.format.layout;
  const PackedRows sizes(tensor);
  tensor.codes.resize(sizes.rows * sizes.words);
  for (std::size_t row = 0; row < sizes.rows; ++row) {
    pack_row(codes.subspan(row * sizes.codes, sizes.codes), tensor.format.index_bits,
             std::span(tensor.codes).subspan(row * sizes.words, sizes.words));
  }
  tensor.format.layout = {};
  repack(tensor, layout);
}

}  // namespace vqgen

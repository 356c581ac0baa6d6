#include "quantizer/pack.h"

#include <vq/layout/codes.h>

namespace vqgen {

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

}  // namespace vqgen

// Small tensors by hand, and codes packed and unpacked by an independent method: a row as a string
// of '0' and '1', least significant bit first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen::test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::vector<std::uint32_t> pack_row(const std::vector<std::uint32_t>& codes, int bits) {
  std::string text;
  for (const std::uint32_t code : codes) {
    for (int i = 0; i < bits; ++i) text += (code >> i) % 2 == 1 ? '1' : '0';
  }
  text.resize((text.size() + 31) / 32 * 32, '0');
  std::vector<std::uint32_t> words;
  for (std::size_t at = 0; at < text.size(); at += 32) {
    std::string word = text.substr(at, 32);
    std::reverse(word.begin(), word.end());
    words.push_back(static_cast<std::uint32_t>(std::stoul(word, nullptr, 2)));
  }
  return words;
}

inline std::size_t codes_per_row(const QuantizedTensor& t) {
  return static_cast<std::size_t>(t.columns / t.format.vector_size * t.format.num_codebooks);
}

// All codes of a tensor, row after row.
inline std::vector<std::uint32_t> unpack(const QuantizedTensor& t) {
  std::vector<std::uint32_t> codes;
  const auto words = static_cast<std::size_t>(t.row_words);
  for (std::size_t row = 0; row < t.codes.size() / words; ++row) {
    std::string text;
    for (std::size_t w = 0; w < words; ++w) {
      for (int i = 0; i < 32; ++i) text += (t.codes[row * words + w] >> i) % 2 == 1 ? '1' : '0';
    }
    const auto bits = static_cast<std::size_t>(t.format.index_bits);
    for (std::size_t i = 0; i < codes_per_row(t); ++i) {
      std::string code = text.substr(i * bits, bits);
      std::reverse(code.begin(), code.end());
      codes.push_back(static_cast<std::uint32_t>(std::stoul(code, nullptr, 2)));
    }
  }
  return codes;
}

// Sets row_words and codes.
inline void pack(QuantizedTensor& t, const std::vector<std::uint32_t>& codes) {
  t.codes.clear();
  const auto count = static_cast<std::ptrdiff_t>(codes_per_row(t));
  for (auto from = codes.begin(); from != codes.end(); from += count) {
    const auto row = pack_row({from, from + count}, t.format.index_bits);
    t.row_words = static_cast<std::int64_t>(row.size());
    t.codes.insert(t.codes.end(), row.begin(), row.end());
  }
}

inline std::vector<std::uint16_t> f16(const std::vector<double>& values) {
  std::vector<std::uint16_t> bits;
  for (const double value : values) bits.push_back(f16_from_float(static_cast<float>(value)));
  return bits;
}

// One head or weight matrix of rows x columns with one unit and d2b2 entries (1,0) (0,1) (2,-1)
// (0.5,4).
inline QuantizedTensor tiny_tensor(std::int64_t rows, std::int64_t columns,
                                   const std::vector<std::uint32_t>& codes) {
  QuantizedTensor t;
  t.format.vector_size = 2;
  t.format.index_bits = 2;
  t.rows = rows;
  t.columns = columns;
  t.units = 1;
  t.codebooks = f16({1, 0, 0, 1, 2, -1, 0.5, 4});
  pack(t, codes);
  return t;
}

}  // namespace vqgen::test

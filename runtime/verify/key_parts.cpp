#include "runtime/verify/key_parts.h"

#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

// visit(sequence, head, row) in their order.
template <class Visit>
void for_each_row(const QuantizedTensor& keys, Visit visit) {
  for (std::int64_t b = 0; b < keys.batch; ++b) {
    for (std::int64_t head = 0; head < keys.heads; ++head) {
      for (std::int64_t row = 0; row < keys.rows; ++row) visit(b, head, row);
    }
  }
}

}  // namespace

std::vector<QuantizedTensor> split_keys(const QuantizedTensor& keys,
                                        std::span<const std::uint32_t> codes) {
  std::vector<QuantizedTensor> parts;
  std::size_t element = 0;  // offset of the part's first codebook
  std::int64_t first_word = 0;
  std::int64_t channels = 0;
  require(std::ssize(codes) == keys.batch * keys.heads * keys.head_words(),
          "keys in parts: codes are not [batch][heads][head_words]");
  for (const VqFormat& format : keys.format.parts) {
    QuantizedTensor part;
    part.format = part_alone(format);
    part.dtype = keys.dtype;
    part.batch = keys.batch;
    part.heads = keys.heads;
    part.rows = keys.rows;
    part.columns = std::ssize(format.channels);
    require(format.vector_size > 0 && part.columns > 0 && part.columns % format.vector_size == 0,
            "keys in parts: vector_size does not divide the channels of a part");
    const std::int64_t bits =
        part.columns / format.vector_size * format.num_codebooks * format.index_bits;
    part.row_words = (bits + 31) / 32;
    part.units = unit_of(part, part.heads - 1, part.rows - 1, part.columns - 1) + 1;
    require(first_word + part.row_words <= keys.row_words,
            "keys in parts: row_words is less than the parts need");
    for_each_row(keys, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
      for (std::int64_t word = 0; word < part.row_words; ++word) {
        part.codes.push_back(codes[word_number(keys, b, head, row, first_word + word)]);
      }
    });
    const std::int64_t elements =
        part.units * format.num_codebooks * format.entries() * format.vector_size;
    for (std::int64_t i = 0; i < elements; ++i) {
      require(element < keys.codebooks.size(), "keys in parts: codebooks are missing");
      part.codebooks.push_back(keys.codebooks[element++]);
    }
    first_word += part.row_words;
    channels += part.columns;
    parts.push_back(std::move(part));
  }
  require(
      first_word == keys.row_words && element == keys.codebooks.size() && channels == keys.columns,
      "keys in parts: rows, codebooks or channels are more than those of the parts");
  return parts;
}

QuantizedTensor join_keys(const VqFormat& format, std::span<const QuantizedTensor> parts,
                          std::int64_t columns) {
  QuantizedTensor keys;
  keys.format = format;
  keys.dtype = parts.front().dtype;
  keys.batch = parts.front().batch;
  keys.heads = parts.front().heads;
  keys.rows = parts.front().rows;
  keys.columns = columns;
  for (const QuantizedTensor& part : parts) {
    keys.row_words += part.row_words;
    keys.units += part.units;
    keys.codebooks.insert(keys.codebooks.end(), part.codebooks.begin(), part.codebooks.end());
  }
  keys.codes.resize(static_cast<std::size_t>(keys.batch * keys.heads * keys.head_words()));
  std::int64_t number = 0;  // words of the row in all heads
  for_each_row(keys, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
    std::int64_t word = 0;
    for (const QuantizedTensor& part : parts) {
      auto from = part.codes.begin() + number * part.row_words;
      for (std::int64_t i = 0; i < part.row_words; ++i) {
        keys.codes[word_number(keys, b, head, row, word++)] = *from++;
      }
    }
    ++number;
  });
  return keys;
}

std::vector<std::uint16_t> split_elements(std::span<const std::uint16_t> rows,
                                          std::int64_t head_dim, const VqFormat& part) {
  std::vector<std::uint16_t> elements;
  for (std::int64_t row = 0; row < std::ssize(rows); row += head_dim) {
    for (const int channel : part.channels) {
      elements.push_back(rows[static_cast<std::size_t>(row + channel)]);
    }
  }
  return elements;
}

}  // namespace vqgen

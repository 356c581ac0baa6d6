#include "runtime/verify/row_parts.h"

#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

// visit(sequence, head, row) in their order.
template <class Visit>
void for_each_row(const QuantizedTensor& tensor, Visit visit) {
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t row = 0; row < tensor.rows; ++row) visit(b, head, row);
    }
  }
}

}  // namespace

std::vector<QuantizedTensor> split_rows(const QuantizedTensor& tensor,
                                        std::span<const std::uint32_t> codes) {
  std::vector<QuantizedTensor> parts;
  std::size_t element = 0;  // of the codebooks, the part's first
  std::size_t scale = 0;    // of the stage scales, the part's first
  std::int64_t first_word = 0;
  std::int64_t channels = 0;
  require(std::ssize(codes) == tensor.batch * tensor.heads * tensor.head_words(),
          "rows in parts: codes are not [batch][heads][head_words]");
  for (const VqFormat& format : tensor.format.parts) {
    QuantizedTensor part;
    part.format = part_alone(format);
    part.dtype = tensor.dtype;
    part.batch = tensor.batch;
    part.heads = tensor.heads;
    part.rows = tensor.rows;
    part.columns = std::ssize(format.channels);
    require(format.vector_size > 0 && part.columns > 0 && part.columns % format.vector_size == 0,
            "rows in parts: vector_size does not divide the channels of a part");
    const std::int64_t bits =
        part.columns / format.vector_size * format.num_codebooks * format.index_bits;
    part.row_words = (bits + 31) / 32;
    part.units = unit_of(part, part.heads - 1, part.rows - 1, part.columns - 1) + 1;
    require(first_word + part.row_words <= tensor.row_words,
            "rows in parts: row_words is less than the parts need");
    for_each_row(tensor, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
      for (std::int64_t word = 0; word < part.row_words; ++word) {
        part.codes.push_back(codes[word_number(tensor, b, head, row, first_word + word)]);
      }
    });
    const std::int64_t elements =
        part.units * format.num_codebooks * format.entries() * format.vector_size;
    for (std::int64_t i = 0; i < elements; ++i) {
      require(element < tensor.codebooks.size(), "rows in parts: codebooks are missing");
      part.codebooks.push_back(tensor.codebooks[element++]);
    }
    const std::int64_t scales = format.stage_scales ? part.units * format.num_codebooks : 0;
    for (std::int64_t i = 0; i < scales; ++i) {
      require(scale < tensor.stage_scales.size(), "rows in parts: stage_scales are missing");
      part.stage_scales.push_back(tensor.stage_scales[scale++]);
    }
    first_word += part.row_words;
    channels += part.columns;
    parts.push_back(std::move(part));
  }
  require(first_word == tensor.row_words && element == tensor.codebooks.size() &&
              scale == tensor.stage_scales.size() && channels == tensor.columns,
          "rows in parts: rows, codebooks, scales or channels are more than those of the parts");
  return parts;
}

QuantizedTensor join_rows(const VqFormat& format, std::span<const QuantizedTensor> parts,
                          std::int64_t columns) {
  QuantizedTensor tensor;
  tensor.format = format;
  tensor.dtype = parts.front().dtype;
  tensor.batch = parts.front().batch;
  tensor.heads = parts.front().heads;
  tensor.rows = parts.front().rows;
  tensor.columns = columns;
  for (const QuantizedTensor& part : parts) {
    tensor.row_words += part.row_words;
    tensor.units += part.units;
    tensor.codebooks.insert(tensor.codebooks.end(), part.codebooks.begin(), part.codebooks.end());
    tensor.stage_scales.insert(tensor.stage_scales.end(), part.stage_scales.begin(),
                               part.stage_scales.end());
  }
  tensor.codes.resize(static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.head_words()));
  std::int64_t number = 0;  // of the row, of all heads
  for_each_row(tensor, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
    std::int64_t word = 0;
    for (const QuantizedTensor& part : parts) {
      auto from = part.codes.begin() + number * part.row_words;
      for (std::int64_t i = 0; i < part.row_words; ++i) {
        tensor.codes[word_number(tensor, b, head, row, word++)] = *from++;
      }
    }
    ++number;
  });
  return tensor;
}

}  // namespace vqgen

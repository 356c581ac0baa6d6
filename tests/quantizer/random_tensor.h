// Quantized tensors with random codes in awkward formats, and their codes by definition, for the
// tests of counting and reordering.
#pragma once

#include "quantizer/pack.h"
#include "tests/quantizer/samples.h"

namespace vqgen::samples {

struct Shape {
  VqFormat format;
  std::int64_t batch, heads, rows, columns;
};

// All widths of codes, rows that end within a word, one row, units cut off at the edges.
inline std::vector<Shape> awkward_shapes() {
  std::vector<Shape> shapes;
  for (int bits = 2; bits <= 16; ++bits) {
    shapes.push_back({table_format(2, bits, Scope::tensor, bits % 3 + 1), 1, 2, 5, 14});
  }
  shapes.push_back({table_format(4, 3, Scope::head, 2), 3, 2, 7, 12});
  shapes.push_back({table_format(4, 5, Scope::channel_group), 2, 3, 9, 12});
  Shape grouped{table_format(2, 3, Scope::channel_group, 3), 1, 2, 1, 16};
  grouped.format.group_channels = 8;
  shapes.push_back(grouped);
  Shape tiled{table_format(4, 6, Scope::tile, 2), 1, 1, 23, 40};
  tiled.format.tile_rows = 10;
  tiled.format.tile_columns = 16;
  shapes.push_back(tiled);
  return shapes;
}

// Codes are code_of(row, number in the row), where `row` counts over batch, heads and rows;
// codebooks are random.
template <class CodeOf>
QuantizedTensor tensor_with(const Shape& shape, CodeOf&& code_of) {
  const VqFormat& format = shape.format;
  QuantizedTensor tensor;
  tensor.format = format;
  tensor.batch = shape.batch;
  tensor.heads = shape.heads;
  tensor.rows = shape.rows;
  tensor.columns = shape.columns;
  tensor.units = unit_map(format, shape.heads, shape.rows, shape.columns, "sample").units();
  const Codebooks codebooks = random_codebooks(format, tensor.units, DType::f16, 3);
  tensor.codebooks = codebooks.entries;
  tensor.stage_scales = codebooks.stage_scales;
  std::vector<std::uint32_t> row(
      static_cast<std::size_t>(shape.columns / format.vector_size * format.num_codebooks));
  tensor.row_words = vq::row_words(std::ssize(row), 1, 1, format.index_bits);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tensor.row_words));
  for (std::int64_t index = 0; index < shape.batch * shape.heads * shape.rows; ++index) {
    for (std::size_t code = 0; code < row.size(); ++code) {
      row[code] = code_of(index, static_cast<std::int64_t>(code));
    }
    pack_row(row, format.index_bits, words);
    tensor.codes.insert(tensor.codes.end(), words.begin(), words.end());
  }
  return tensor;
}

// Random codes, lower ones more likely, so that some entries are hot and many are never read.
inline QuantizedTensor random_tensor(const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto entries = static_cast<std::uint32_t>(shape.format.entries());
  return tensor_with(shape, [&](std::int64_t, std::int64_t) {
    const std::uint32_t first = static_cast<std::uint32_t>(random()) % entries;
    const std::uint32_t second = static_cast<std::uint32_t>(random()) % entries;
    // The hot codes are not in order of number: 5 is odd, so this permutes.
    return (std::min(first, second) * 5 + 3) % entries;
  });
}

// Sets the padding bits that follow the codes of each row.
inline void fill_padding(QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  const std::int64_t bits =
      tensor.columns / format.vector_size * format.num_codebooks * format.index_bits;
  if (bits % 32 == 0) return;
  const auto row_words = static_cast<std::size_t>(tensor.row_words);
  for (std::size_t last = row_words - 1; last < tensor.codes.size(); last += row_words) {
    tensor.codes[last] |= ~0u << bits % 32;
  }
}

// Code `number` of row `index`, bit by bit.
inline std::int64_t naive_code(const QuantizedTensor& tensor, std::int64_t index,
                               std::int64_t number) {
  std::int64_t code = 0;
  for (std::int64_t bit = 0; bit < tensor.format.index_bits; ++bit) {
    const std::int64_t place = number * tensor.format.index_bits + bit;
    const std::uint32_t word =
        tensor.codes[static_cast<std::size_t>(index * tensor.row_words + place / 32)];
    code |= std::int64_t{word >> place % 32 & 1u} << bit;
  }
  return code;
}

// The unit of one sub-vector by layout/format.h, and the rows that it serves.
struct NaiveUnit {
  std::int64_t number, first_row, rows;
};
inline NaiveUnit naive_unit(const QuantizedTensor& tensor, std::int64_t head, std::int64_t row,
                            std::int64_t vector) {
  const VqFormat& format = tensor.format;
  const std::int64_t column = vector * format.vector_size;
  switch (format.scope) {
    case Scope::head:
      return {head, 0, tensor.rows};
    case Scope::channel_group: {
      const std::int64_t groups = tensor.columns / format.channels_per_group();
      return {head * groups + column / format.channels_per_group(), 0, tensor.rows};
    }
    case Scope::tile: {
      const std::int64_t across = (tensor.columns + format.tile_columns - 1) / format.tile_columns;
      const std::int64_t first = row / format.tile_rows * format.tile_rows;
      return {row / format.tile_rows * across + column / format.tile_columns, first,
              std::min<std::int64_t>(format.tile_rows, tensor.rows - first)};
    }
    default:
      return {0, 0, tensor.rows};
  }
}

}  // namespace vqgen::samples

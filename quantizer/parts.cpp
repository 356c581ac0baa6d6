#include "quantizer/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/pack.h"

namespace vqgen {
namespace {

// Calls visit(part, words of its row, words of a row before them, channels) for each part.
template <class Visit>
void for_each_row_part(const VqFormat& format, Visit visit) {
  std::int64_t before = 0;
  for (std::size_t i = 0; i < format.parts.size(); ++i) {
    const std::int64_t columns = std::ssize(format.parts[i].channels);
    const std::int64_t words = format.parts[i].row_words(columns);
    visit(i, words, before, columns);
    before += words;
  }
}

}  // namespace

FloatTensor take_channels(const FloatTensor& tensor, std::span<const int> channels) {
  FloatTensor part{tensor.batch, tensor.heads, tensor.rows, std::ssize(channels), {}};
  part.data.reserve(static_cast<std::size_t>(tensor.row_count()) * channels.size());
  for (std::int64_t row = 0; row < tensor.row_count(); ++row) {
    const std::span<const float> from = tensor.row(row);
    for (const int channel : channels) part.data.push_back(from[static_cast<std::size_t>(channel)]);
  }
  return part;
}

void put_channels(const FloatTensor& part, std::span<const int> channels, FloatTensor& to) {
  for (std::int64_t row = 0; row < part.row_count(); ++row) {
    const std::span<const float> from = part.row(row);
    for (std::size_t i = 0; i < channels.size(); ++i) {
      to.row(row)[static_cast<std::size_t>(channels[i])] = from[i];
    }
  }
}

QuantizedTensor take_part(const QuantizedTensor& keys, std::size_t part) {
  if (!keys.format.layout.plain()) {
    QuantizedTensor plain = keys;
    repack(plain, CodeLayout{});
    return take_part(plain, part);
  }
  QuantizedTensor result;
  result.format = part_alone(keys.format.parts[part]);
  result.dtype = keys.dtype;
  result.batch = keys.batch;
  result.heads = keys.heads;
  result.rows = keys.rows;
  std::int64_t first_element = 0;
  std::int64_t first_scale = 0;
  const auto heads = static_cast<int>(keys.heads);
  for_each_row_part(keys.format, [&](std::size_t i, std::int64_t words, std::int64_t before,
                                     std::int64_t columns) {
    const VqFormat format = part_alone(keys.format.parts[i]);
    const std::int64_t elements = kv_codebook_elements(format, heads, static_cast<int>(columns));
    const std::int64_t scales =
        format.stage_scales ? kv_stages(format, heads, static_cast<int>(columns)) : 0;
    if (i < part) first_element += elements, first_scale += scales;
    if (i != part) return;
    result.columns = columns;
    result.row_words = words;
    result.units = kv_units(format, heads, static_cast<int>(columns));
    for (std::int64_t row = 0; row < keys.batch * keys.heads * keys.rows; ++row) {
      const auto from = keys.codes.begin() + row * keys.row_words + before;
      result.codes.insert(result.codes.end(), from, from + words);
    }
    const auto books = keys.codebooks.begin() + first_element;
    result.codebooks.assign(books, books + elements);
    const auto factors = keys.stage_scales.begin() + first_scale;
    result.stage_scales.assign(factors, factors + scales);
  });
  return result;
}

QuantizedTensor join_parts(const VqFormat& format, std::span<const QuantizedTensor> parts,
                           std::int64_t columns) {
  const QuantizedTensor& first = parts.front();
  QuantizedTensor keys;
  keys.format = without_layout(format);
  keys.dtype = first.dtype;
  keys.batch = first.batch;
  keys.heads = first.heads;
  keys.rows = first.rows;
  keys.columns = columns;
  keys.row_words = format.row_words(columns);
  const std::int64_t rows = keys.batch * keys.heads * keys.rows;
  keys.codes.resize(static_cast<std::size_t>(rows * keys.row_words));
  for_each_row_part(
      format, [&](std::size_t i, std::int64_t words, std::int64_t before, std::int64_t) {
        const QuantizedTensor& part = parts[i];
        keys.units += part.units;
        keys.gain.insert(keys.gain.end(), part.gain.begin(), part.gain.end());
        keys.codebooks.insert(keys.codebooks.end(), part.codebooks.begin(), part.codebooks.end());
        keys.stage_scales.insert(keys.stage_scales.end(), part.stage_scales.begin(),
                                 part.stage_scales.end());
        for (std::int64_t row = 0; row < rows; ++row) {
          std::copy_n(part.codes.begin() + row * words, words,
                      keys.codes.begin() + row * keys.row_words + before);
        }
      });
  repack(keys, format.layout);
  return keys;
}

void require_one_format(const VqFormat& format, const char* what) {
  if (!format.in_parts()) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: is not built for rows in parts; take rows of one format", what));
}

}  // namespace vqgen

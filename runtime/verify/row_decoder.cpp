#include "runtime/verify/row_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "core/error.h"
#include "core/format/vq_format.h"
#include "runtime/verify/row_parts.h"

namespace vqgen {
namespace {

std::int64_t groups_of(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Words of the scales of groups of inputs of a row.
std::int64_t group_words(const QuantizedTensor& t) {
  const VqFormat& f = t.format;
  if (f.group_inputs == 0) return 0;
  const std::int64_t groups = t.columns / f.group_inputs;
  const std::int64_t each = f.group_minima ? 2 : 1;
  const std::int64_t packed = (groups * each * f.group_scale_bits + 31) / 32;
  const std::int64_t halves = each * (f.group_scale_bits == 0 ? groups : t.columns / 256);
  return (packed + (halves + 1) / 2 + 3) / 4 * 4;
}

struct FactorOfGroup {
  double scale = 0;
  double minimum = 0;
};

// What the group of an input has in a row's words.
FactorOfGroup factor_of_group(const QuantizedTensor& t, std::span<const std::uint32_t> words,
                              std::int64_t input) {
  const VqFormat& f = t.format;
  const auto scales = words.subspan(words.size() - static_cast<std::size_t>(group_words(t)));
  const auto f16 = [&](std::int64_t bit) {
    return element_value(DType::f16, static_cast<std::uint16_t>(read_code(scales, bit, 16)));
  };
  const std::int64_t group = input / f.group_inputs, bits = f.group_scale_bits;
  if (bits == 0 && f.group_minima) return {f16(32 * group), f16(32 * group + 16)};
  if (bits == 0) return {f16(16 * group)};
  const std::int64_t each = f.group_minima ? 2 : 1;
  const std::int64_t packed = (t.columns / f.group_inputs * each * bits + 31) / 32;
  const auto number = [&](std::int64_t at) {
    return 1.0 * read_code(scales, at * bits, static_cast<int>(bits));
  };
  const std::int64_t block = 32 * packed + 16 * each * (input / 256);
  if (!f.group_minima) return {f16(block) * (2 * number(group) + 1)};
  return {f16(block) * number(2 * group), f16(block + 16) * number(2 * group + 1)};
}

void check_sizes(const QuantizedTensor& t) {
  const VqFormat& f = t.format;
  require(f.vector_size > 0 && f.num_codebooks > 0 && f.index_bits >= 2 &&
              f.index_bits <= (f.decoder == Decoder::signs ? 18 : 16),
          "quantized tensor: vector_size, num_codebooks or index_bits out of range");
  require(f.decoder != Decoder::e8p || (f.vector_size == 8 && f.index_bits == 16),
          "quantized tensor: e8p makes 8 elements of 16 bits");
  require(
      f.decoder != Decoder::signs ||
          (f.vector_size <= 8 && f.index_bits > f.vector_size && f.num_codebooks == 1),
      "quantized tensor: codes with signs have a bit per element, others for the entry, and one "
      "stage");
  require(!f.is_scalar() ||
              (f.index_bits == 16 && f.num_codebooks == 1 && !f.stage_scales &&
               (f.vector_size == 2 || (f.vector_size == 4 && f.decoder != Decoder::e4m3))),
          "quantized tensor: scalar codes are 2 elements, or 4 integers, of 16 bits in one stage");
  require(f.scope != Scope::tile || (f.tile_rows > 0 && f.tile_columns > 0),
          "quantized tensor: scope tile without tile_rows and tile_columns");
  require(t.batch > 0 && t.heads > 0 && t.rows > 0 && t.columns > 0,
          "quantized tensor: an empty axis");
  require(t.columns % f.vector_size == 0, "quantized tensor: vector_size does not divide columns");
  const std::int64_t row_bits = t.columns / f.vector_size * f.num_codebooks * f.index_bits;
  require(!f.token_scales || f.is_scalar(), "quantized tensor: token scales go with scalar codes");
  require(!f.has_zeros() || f.scale_words(t.columns) > 0,
          "quantized tensor: zeros are beside scales");
  require(f.group_tokens == 0 || (f.is_scalar() && t.columns % f.group_tokens == 0),
          "quantized tensor: groups of tokens have scalar codes and divide the columns");
  const std::int64_t shared = f.group_scale_bits > 0 ? 256 : f.group_inputs;
  require(f.group_inputs == 0 || t.columns % shared == 0,
          "quantized tensor: groups of inputs with scales do not divide the columns");
  require(t.row_words == (row_bits + 31) / 32 + f.scale_words(t.columns) + group_words(t),
          "quantized tensor: row_words is not the words that a row needs");
  require(layout_problem(f.layout).empty(), "quantized tensor: a layout that there is not");
  require(std::ssize(t.codes) == t.batch * t.heads * groups_of(t.rows, f.layout.rows) *
                                     f.layout.rows * groups_of(t.row_words, f.layout.words) *
                                     f.layout.words,
          "quantized tensor: codes are not [batch][heads][rows][row_words], padded as the layout "
          "asks for");
  require(t.units == unit_of(t, t.heads - 1, t.rows - 1, t.columns - 1) + 1,
          "quantized tensor: units do not match the scope");
  const std::int64_t stages = t.units * f.num_codebooks;
  require(std::ssize(t.codebooks) == stages * f.entries() * f.vector_size,
          "quantized tensor: codebooks are not [units][num_codebooks][entries][vector_size]");
  require(std::ssize(t.stage_scales) == (f.stage_scales ? stages : 0),
          "quantized tensor: stage_scales are not [units][num_codebooks]");
  require(fits_stage_scales(f, t.stage_scales),
          "quantized tensor: stage_scales of a unit differ, where the format has a common one");
  require(std::ssize(t.output_scales) == (f.output_scales ? t.heads * t.rows : 0),
          "quantized tensor: output_scales are not [heads][rows]");
  require(std::ssize(t.smooth) == (f.smooth ? t.heads * t.columns : 0),
          "quantized tensor: smooth is not [heads][columns]");
}

void check_basis(const QuantizedTensor& t) {
  require(std::ssize(t.mean) == (t.format.center ? t.heads * t.columns : 0),
          "quantized tensor: mean is not [heads][columns]");
  require(std::ssize(t.rotation) == (t.format.klt ? t.heads * t.columns * t.columns : 0),
          "quantized tensor: rotation is not [heads][columns][columns]");
}

// The number of element i in a scalar code, of `bits` bits: read bit by bit.
double scalar_number(const VqFormat& f, std::uint32_t code, std::size_t i) {
  const int bits = f.index_bits / f.vector_size;
  const auto bit = [&](int n) {
    return static_cast<int>(code >> (bits * static_cast<int>(i) + n) & 1u);
  };
  if (f.decoder == Decoder::e4m3) {
    const int exponent = 8 * bit(6) + 4 * bit(5) + 2 * bit(4) + bit(3);
    const double mantissa = 0.5 * bit(2) + 0.25 * bit(1) + 0.125 * bit(0);
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
    return bit(7) == 1 ? -magnitude : magnitude;
  }
  int number = (f.has_zeros() ? 1 : -1) * bit(bits - 1) * (1 << (bits - 1));
  for (int n = 0; n + 1 < bits; ++n) number += bit(n) << n;
  return number;
}

// The squared distance of one element x to the nearest number that may be written, found by trying
// all.
double scalar_squares(const VqFormat& f, double x, double scale) {
  const auto peak = static_cast<double>(scalar_peak(f));
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t code = 0; code < 1u << (f.index_bits / f.vector_size); ++code) {
    const double number = scalar_number(f, code, 0);
    if (std::abs(number) > peak) continue;
    least = std::min(least, (x - scale * number) * (x - scale * number));
  }
  return least;
}

// The squared distance of x to `scale` times a point.
double squares(std::span<const double> x, std::span<const double> point, double scale) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = x[i] - scale * point[i];
    sum += difference * difference;
  }
  return sum;
}

// Lowers `least` to the squared distance of the nearest lattice point with one entry and shift. It
// tries the signs of x less the shift, and each of the first seven flipped; the eighth follows from
// the parity. Free signs bound the distance from below.
void look_at_lattice(std::span<const double> x, std::span<const double> entry, double scale,
                     std::uint32_t down, double& least) {
  constexpr double kRounding = 1 - 1e-9;
  double free = 0;
  std::uint32_t signs = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const double left = x[i] - scale * (down == 0 ? 0.25 : -0.25);
    const double difference = std::abs(left) - scale * entry[i];
    free += difference * difference;
    if (i < 7 && left < 0) signs |= 1u << i;
  }
  if (free * kRounding > least) return;
  const std::uint32_t code = signs << 8 | down << 15;
  least = std::min(least, squares(x, e8p_point(entry, code), scale));
  for (std::uint32_t i = 0; i < 7; ++i) {
    least = std::min(least, squares(x, e8p_point(entry, code ^ 1u << (8 + i)), scale));
  }
}

}  // namespace

void require(bool consistent, const char* message) {
  if (!consistent) throw Error(ErrorKind::bad_input, message);
}

int reference_threads(std::int64_t multiply_adds) {
  constexpr std::int64_t kWorth = 1 << 24;  // some 10 ms
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(std::clamp<std::int64_t>(multiply_adds / kWorth, 1, cores));
}

std::uint32_t read_code(std::span<const std::uint32_t> row, std::int64_t bit, int index_bits) {
  std::uint32_t code = 0;
  for (int i = 0; i < index_bits; ++i) {
    const auto at = static_cast<std::size_t>(bit + i);
    code |= ((row[at / 32] >> (at % 32)) & 1u) << i;
  }
  return code;
}

std::size_t word_number(const QuantizedTensor& tensor, std::int64_t sequence, std::int64_t head,
                        std::int64_t row, std::int64_t word) {
  const CodeLayout& l = tensor.format.layout;
  std::int64_t number = sequence * tensor.heads + head;
  number = number * groups_of(tensor.rows, l.rows) + row / l.rows;
  number = number * groups_of(tensor.row_words, l.words) + word / l.words;
  number = number * l.rows + row % l.rows;
  number = number * l.words + word % l.words;
  return static_cast<std::size_t>(number);
}

std::vector<std::uint32_t> row_words(const QuantizedTensor& tensor,
                                     std::span<const std::uint32_t> codes, std::int64_t sequence,
                                     std::int64_t head, std::int64_t row) {
  std::vector<std::uint32_t> words;
  for (std::int64_t word = 0; word < tensor.row_words; ++word) {
    words.push_back(codes[word_number(tensor, sequence, head, row, word)]);
  }
  return words;
}

ScaleOfToken scale_of_token(const QuantizedTensor& tensor, std::span<const std::uint32_t> codes,
                            std::int64_t sequence, std::int64_t head, std::int64_t row,
                            std::int64_t column) {
  const VqFormat& f = tensor.format;
  const std::int64_t of_row = f.scale_words(tensor.columns);
  std::int64_t behind = tensor.row_words - of_row;
  if (f.group_tokens > 0) {
    row += column / of_row - row % f.group_tokens;
    behind += column % of_row;
  } else {
    behind += column / f.scale_channels(tensor.columns);
  }
  require(row < tensor.rows, "quantized tensor: a token is read whose group is not whole");
  const std::uint32_t word = codes[word_number(tensor, sequence, head, row, behind)];
  if (!f.has_zeros()) return {static_cast<double>(std::bit_cast<float>(word)), 0};
  return {element_value(tensor.dtype, static_cast<std::uint16_t>(word & 0xffffu)),
          element_value(tensor.dtype, static_cast<std::uint16_t>(word >> 16))};
}

std::array<double, 8> e8p_point(std::span<const double> entry, std::uint32_t code) {
  std::array<double, 8> point{};
  std::copy_n(entry.begin(), 8, point.begin());
  double sum = 0;
  for (std::size_t i = 0; i < 7; ++i) {
    if ((code >> (8 + i)) % 2 == 1) point[i] = -point[i];
    sum += point[i];
  }
  if (std::fmod(sum + point[7], 2) != 0) point[7] = -point[7];
  for (double& value : point) value += code < 0x8000 ? 0.25 : -0.25;
  return point;
}

std::int64_t unit_of(const QuantizedTensor& tensor, std::int64_t head, std::int64_t row,
                     std::int64_t column) {
  const VqFormat& f = tensor.format;
  const std::int64_t first = head * tensor.expert_units;
  if (tensor.expert_units > 0) head = 0;
  switch (f.scope) {
    case Scope::tensor:
      return first;
    case Scope::head:
      return head;
    case Scope::channel_group: {
      const std::int64_t extent = f.channels_per_group();
      return first + head * groups_of(tensor.columns, extent) + column / extent;
    }
    case Scope::tile:
      return first + row / f.tile_rows * groups_of(tensor.columns, f.tile_columns) +
             column / f.tile_columns;
  }
  return 0;
}

// Tensors and decoders of rows in parts.
struct RowDecoder::Parts {
  std::vector<QuantizedTensor> tensors;
  std::vector<RowDecoder> decoders;
};

RowDecoder::RowDecoder(const QuantizedTensor& tensor) : tensor_(tensor) {
  check_basis(tensor);
  if (tensor.format.in_parts()) {
    const auto parts = std::make_shared<Parts>();
    parts->tensors = split_rows(tensor, tensor.codes);
    for (const QuantizedTensor& part : parts->tensors) parts->decoders.emplace_back(part);
    parts_ = parts;
    return;
  }
  check_sizes(tensor);
  entries_.resize(tensor.codebooks.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i] = element_value(tensor.dtype, tensor.codebooks[i]);
    require(fits_entries(tensor.format, static_cast<float>(entries_[i])),
            "quantized tensor: a number among the entries that the format does not have");
  }
}

void RowDecoder::decode(std::int64_t sequence, std::int64_t head, std::int64_t row,
                        std::span<double> out) const {
  const QuantizedTensor& t = tensor_;
  const VqFormat& f = t.format;
  for (std::size_t i = 0; i < f.parts.size(); ++i) {
    std::vector<double> part(f.parts[i].channels.size());
    parts_->decoders[i].decode(sequence, head, row, part);
    for (std::size_t j = 0; j < part.size(); ++j) {
      out[static_cast<std::size_t>(f.parts[i].channels[j])] = part[j];
    }
  }
  if (f.in_parts()) return;
  const std::vector<std::uint32_t> words = row_words(t, t.codes, sequence, head, row);
  std::fill(out.begin(), out.end(), 0.0);
  std::int64_t code_number = 0;
  const auto size = static_cast<std::size_t>(f.vector_size);
  for (std::int64_t column = 0; column < t.columns; column += f.vector_size) {
    const std::int64_t unit = unit_of(t, head, row, column);
    for (int stage = 0; stage < f.num_codebooks; ++stage, ++code_number) {
      const std::uint32_t code = read_code(words, code_number * f.index_bits, f.index_bits);
      add_entry(unit * f.num_codebooks + stage, code,
                out.subspan(static_cast<std::size_t>(column), size));
    }
  }
  for (std::int64_t column = 0; f.group_inputs > 0 && column < t.columns; ++column) {
    const FactorOfGroup by = factor_of_group(t, words, column);
    double& value = out[static_cast<std::size_t>(column)];
    value = by.scale * value - by.minimum;
  }
  if (f.scale_words(t.columns) == 0) return;
  for (std::int64_t column = 0; column < t.columns; ++column) {
    const ScaleOfToken by = scale_of_token(t, t.codes, sequence, head, row, column);
    double& value = out[static_cast<std::size_t>(column)];
    value = by.zero + by.scale * value;
  }
}

void RowDecoder::add_entry(std::int64_t book, std::uint32_t code, std::span<double> out) const {
  const VqFormat& f = tensor_.format;
  std::span<const double> from = entry(book, f.entry_of(code));
  std::array<double, 8> point{};
  if (f.is_scalar()) {
    for (std::size_t i = 0; i < out.size(); ++i) point[i] = scalar_number(f, code, i) * from[i];
    from = point;
  } else if (f.decoder == Decoder::e8p) {
    point = e8p_point(from, code);
    from = point;
  } else if (f.decoder == Decoder::signs) {
    const int below = f.index_bits - f.vector_size;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool negative = (code >> below >> i) % 2 == 1;
      point[i] = negative ? -from[i] : from[i];
    }
    from = point;
  }
  const double scale = scale_of(book);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += scale * from[i];
}

std::span<const double> RowDecoder::entry(std::int64_t book, std::int64_t number) const {
  const VqFormat& f = tensor_.format;
  return {entries_.data() + (book * f.entries() + number) * f.vector_size,
          static_cast<std::size_t>(f.vector_size)};
}

double RowDecoder::scale_of(std::int64_t book) const {
  const std::vector<float>& scales = tensor_.stage_scales;
  return scales.empty() ? 1 : static_cast<double>(scales[static_cast<std::size_t>(book)]);
}

std::vector<double> RowDecoder::point(std::int64_t book, std::uint32_t code) const {
  std::vector<double> point(static_cast<std::size_t>(tensor_.format.vector_size));
  add_entry(book, code, point);
  return point;
}

double RowDecoder::least_distance(std::int64_t book, std::span<const double> x) const {
  const double scale = scale_of(book);
  if (tensor_.format.is_scalar()) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += scalar_squares(tensor_.format, x[i], entry(book, 0)[i]);
    }
    return std::sqrt(sum);
  }
  double least = std::numeric_limits<double>::infinity();  // its square
  for (int number = 0; number < tensor_.format.entries(); ++number) {
    const std::span<const double> stored = entry(book, number);
    if (tensor_.format.decoder == Decoder::table) {
      least = std::min(least, squares(x, stored, scale));
    } else {
      for (const std::uint32_t down : {0u, 1u}) look_at_lattice(x, stored, scale, down, least);
    }
  }
  return std::sqrt(least);
}

}  // namespace vqgen

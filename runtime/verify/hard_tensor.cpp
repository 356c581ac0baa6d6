#include "runtime/verify/hard_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/problem/problem.h"
#include "runtime/verify/basis.h"
#include "runtime/verify/row_decoder.h"
#include "runtime/verify/row_parts.h"

namespace vqgen {
namespace {

constexpr std::int64_t kChannelsAnOutlier = 64;
constexpr double kOutlierEntries = 1.0 / 16;
constexpr double kOutlierUnits = 1.0 / 8;
constexpr int kSmallestStage = 4;  // entries of later stages keep 2^-4, far above f16's subnormals

std::vector<float> factors(std::int64_t count, Random& random) {
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& factor : result) factor = static_cast<float>(random.uniform(0.5, 2));
  return result;
}

double stage_share(int stage) { return std::ldexp(1, -std::min(stage, kSmallestStage)); }

// An integer near int8_unit() for a number near 1; outliers reach both ends.
double int8_unit(const VqFormat& format) { return 16.0 * format.entry_peak() / kInt8Peak; }
double int8_entry(const VqFormat& format, double value) {
  const double peak = format.entry_peak();
  return std::clamp(std::round(int8_unit(format) * value), -peak, peak);
}

// Neither the lattice nor integers can carry the magnitude, so their stage scales do, if the format
// has them.
std::vector<float> carrying_scales(const QuantizedTensor& t, double magnitude, Random& random) {
  const double unit = t.format.entry_type == EntryType::int8 ? int8_unit(t.format) : 1;
  std::vector<float> scales = factors(t.units * t.format.num_codebooks, random);
  for (std::size_t book = 0; book < scales.size(); ++book) {
    const int stage = static_cast<int>(book) % t.format.num_codebooks;
    const double share = t.format.common_scale ? 1 : stage_share(stage);
    scales[book] *= static_cast<float>(magnitude * share / unit);
    if (t.format.common_scale && stage > 0) scales[book] = scales[book - 1];
  }
  return scales;
}

// The table of the lattice, in an order of its own for each unit and stage.
std::vector<std::uint16_t> make_lattice(const QuantizedTensor& t, Random& random) {
  const std::vector<float> table = e8p_table();
  std::vector<std::int64_t> order(kE8pEntries);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::uint16_t> result;
  for (std::int64_t book = 0; book < t.units * t.format.num_codebooks; ++book) {
    random.shuffle(order);
    for (const std::int64_t entry : order) {
      for (std::int64_t i = 0; i < kE8pVectorSize; ++i) {
        const auto at = static_cast<std::size_t>(entry * kE8pVectorSize + i);
        result.push_back(element_from_float(t.dtype, table[at]));
      }
    }
  }
  return result;
}

std::vector<std::uint16_t> make_codebooks(const QuantizedTensor& t, double magnitude,
                                          Random& random) {
  const VqFormat& f = t.format;
  std::vector<std::uint16_t> result;
  result.reserve(static_cast<std::size_t>(t.units * f.num_codebooks * f.entries() * f.vector_size));
  for (std::int64_t unit = 0; unit < t.units; ++unit) {
    const std::int64_t column = random.chance(kOutlierUnits) ? random.below(f.vector_size) : -1;
    for (int stage = 0; stage < f.num_codebooks; ++stage) {
      const double stage_magnitude = magnitude * stage_share(stage);
      for (int entry = 0; entry < f.entries(); ++entry) {
        const std::int64_t element =
            random.chance(kOutlierEntries) ? random.below(f.vector_size) : -1;
        for (int j = 0; j < f.vector_size; ++j) {
          const bool outlier = stage == 0 && (j == element || j == column);
          double value = random.normal() * stage_magnitude * (outlier ? kOutlier : 1);
          if (f.entry_type == EntryType::int8) {
            value = int8_entry(f, value / (f.common_scale ? magnitude : stage_magnitude));
          }
          if (f.decoder == Decoder::signs) value = std::abs(value);
          result.push_back(element_from_float(t.dtype, static_cast<float>(value)));
        }
      }
    }
  }
  return result;
}

// Scales that bring numbers of about a third of the largest to this magnitude.
std::vector<std::uint16_t> make_scales(const QuantizedTensor& t, double magnitude, Random& random) {
  std::vector<std::uint16_t> result;
  for (std::int64_t i = 0; i < t.units * t.format.vector_size; ++i) {
    const double scale = 3 * magnitude / scalar_peak(t.format) * random.uniform(0.5, 2);
    result.push_back(element_from_float(t.dtype, static_cast<float>(scale)));
  }
  return result;
}

// Avoids libm if possible, since its results may differ between machines.
double zipf_weight(int rank, double skew) { return skew == 1 ? 1.0 / rank : std::pow(rank, -skew); }

// 2^16 equal slices of probability, each with its code.
std::vector<std::uint32_t> zipf_slices(int count, double skew, Random& random) {
  constexpr std::size_t kSlices = 65536;
  double total = 0;
  for (int rank = 1; rank <= count; ++rank) total += zipf_weight(rank, skew);
  // An odd factor permutes the codes, whose number is a power of two.
  const auto factor = static_cast<std::uint32_t>(random.bits()) | 1u;
  const auto offset = static_cast<std::uint32_t>(random.bits());
  std::vector<std::uint32_t> codes(kSlices);
  double below = 0;
  std::size_t slice = 0;
  for (int rank = 1; rank <= count; ++rank) {
    below += zipf_weight(rank, skew);
    const std::uint32_t code = (static_cast<std::uint32_t>(rank) * factor + offset) &
                               static_cast<std::uint32_t>(count - 1);
    for (; slice < kSlices && static_cast<double>(slice) < below / total * kSlices; ++slice) {
      codes[slice] = code;
    }
  }
  return codes;
}

// Cumulative counts per codebook, so that codes are drawn exactly, however many accesses there are.
std::vector<std::int64_t> sums_of(const QuantizedTensor& tensor, const CodeLaw& law) {
  const std::int64_t entries = tensor.format.entries();
  const std::int64_t unit_counts = tensor.format.num_codebooks * entries;
  const std::int64_t items = std::ssize(law.counts) / (tensor.units * unit_counts);
  require(items > 0 && std::ssize(law.counts) == items * tensor.units * unit_counts,
          "captured codes: counts are not [item][unit][stage][entry] of the tensor");
  std::vector<std::int64_t> sums;
  sums.reserve(static_cast<std::size_t>(tensor.units * unit_counts));
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    auto from = law.counts.begin() + (unit % items * tensor.units + unit) * unit_counts;
    for (int stage = 0; stage < tensor.format.num_codebooks; ++stage, from += entries) {
      std::partial_sum(from, from + entries, std::back_inserter(sums));
    }
  }
  return sums;
}

// A stream of codes of one pattern. CodePattern::captured has a histogram per codebook; the others
// treat all codebooks alike.
class CodeSource {
 public:
  CodeSource(const QuantizedTensor& tensor, const CodeLaw& law, Random& random)
      : tensor_(tensor), pattern_(law.pattern), count_(tensor.format.codes()), random_(random) {
    if (pattern_ == CodePattern::zipf) slices_ = zipf_slices(count_, law.skew, random);
    common_ = pattern_ == CodePattern::max_code ? static_cast<std::uint32_t>(count_ - 1) : any();
    if (pattern_ == CodePattern::captured) sums_ = sums_of(tensor, law);
  }

  void begin_row() {
    if (pattern_ == CodePattern::one_hot) common_ = any();
  }

  // The code number `number` of a row.
  std::uint32_t next(std::int64_t head, std::int64_t row, std::int64_t number) {
    switch (pattern_) {
      case CodePattern::zipf:
        return slices_[random_.bits() >> 48];
      case CodePattern::one_hot:
        return random_.chance(1.0 / 16) ? any() : common_;
      case CodePattern::uniform:
        return any();
      case CodePattern::captured:
        return captured(head, row, number);
      default:
        return common_;
    }
  }

 private:
  std::uint32_t any() { return static_cast<std::uint32_t>(random_.below(count_)); }

  std::uint32_t captured(std::int64_t head, std::int64_t row, std::int64_t number) {
    const VqFormat& format = tensor_.format;
    const std::int64_t column = number / format.num_codebooks * format.vector_size;
    const std::int64_t book =
        unit_of(tensor_, head, row, column) * format.num_codebooks + number % format.num_codebooks;
    const auto first = sums_.begin() + book * format.entries();
    const auto last = first + format.entries();
    const std::int64_t all = *(last - 1);
    const auto entry = static_cast<std::uint32_t>(
        all == 0 ? random_.below(format.entries())
                 : std::upper_bound(first, last, random_.below(all)) - first);
    if (format.decoder == Decoder::table) return entry;
    return entry + static_cast<std::uint32_t>(random_.below(format.codes() / format.entries())) *
                       static_cast<std::uint32_t>(format.entries());
  }

  const QuantizedTensor& tensor_;
  CodePattern pattern_;
  int count_;
  Random& random_;
  std::vector<std::uint32_t> slices_;
  std::vector<std::int64_t> sums_;  // [unit][stage][entry], of the entry and those before it
  std::uint32_t common_ = 0;
};

// Puts a code of index_bits at a bit of a packed row and leaves all other bits alone.
void write_code(std::uint32_t* row, std::int64_t bit, int index_bits, std::uint32_t code) {
  const std::int64_t shift = bit % 32;
  const std::uint64_t mask = ((std::uint64_t{1} << index_bits) - 1) << shift;
  const bool two = (mask >> 32) != 0;
  std::uint32_t* const word = row + bit / 32;
  std::uint64_t bits = word[0] | (two ? std::uint64_t{word[1]} << 32 : 0);
  bits = (bits & ~mask) | std::uint64_t{code} << shift;
  word[0] = static_cast<std::uint32_t>(bits);
  if (two) word[1] = static_cast<std::uint32_t>(bits >> 32);
}

std::vector<std::uint32_t> random_words(std::size_t count, Random& random) {
  std::vector<std::uint32_t> words(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint64_t bits = random.bits();
    words[i] = static_cast<std::uint32_t>(bits);
    if (i + 1 < count) words[i + 1] = static_cast<std::uint32_t>(bits >> 32);
  }
  return words;
}

// The scale of some of a token's numbers, with a zero that puts them on both sides of 0.
std::uint32_t hard_scale(const QuantizedTensor& tensor, Random& random) {
  const double scale = random.uniform(0.5, 2);
  if (!tensor.format.has_zeros()) return std::bit_cast<std::uint32_t>(static_cast<float>(scale));
  const double step = scale * element_value(tensor.dtype, tensor.codebooks[0]);
  const double zero =
      -step * random.uniform(0.2, 0.8) * static_cast<double>(scalar_peak(tensor.format));
  return std::uint32_t{element_from_float(tensor.dtype, static_cast<float>(zero))} << 16 |
         element_from_float(tensor.dtype, static_cast<float>(scale));
}

// The root mean square of the first codebook's numbers, of its first stage.
double entry_size(const QuantizedTensor& t) {
  const int count = t.format.entries() * t.format.vector_size;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += std::pow(element_value(t.dtype, t.codebooks[static_cast<std::size_t>(i)]), 2);
  }
  return std::sqrt(sum / count) * (t.stage_scales.empty() ? 1 : double{t.stage_scales[0]});
}

// Scales of groups of inputs whose largest are near 1, behind the codes of plain rows, and minima
// of either sign as large as entries; the numbers of few bits stay random.
void fill_group_scales(QuantizedTensor& tensor, Random& random) {
  const vq::GroupScales groups = tensor.format.group_scales();
  const double most = groups.bits == 0 ? 1 : ((groups.minima ? 1 : 2) << groups.bits) - 1;
  const double size = groups.minima ? entry_size(tensor) : 0;
  const std::int64_t words = groups.words(tensor.columns);
  const std::int64_t first = tensor.row_words - words + groups.packed_words(tensor.columns);
  for (std::int64_t at = 0; at < std::ssize(tensor.codes); ++at) {
    if (at % tensor.row_words < first) continue;
    std::uint32_t word = 0;
    for (const int shift : {0, 16}) {
      double number = random.uniform(0.5, 2) / most;
      if (groups.minima && shift > 0) number *= random.chance(0.5) ? size : -size;
      word |= std::uint32_t{element_from_float(DType::f16, static_cast<float>(number))} << shift;
    }
    tensor.codes[static_cast<std::size_t>(at)] = word;
  }
}

// Fills codes of a plain layout, row after row, by the law.
void fill_rows(QuantizedTensor& tensor, const CodeLaw& law, Random& random,
               const RowFilter& patterned) {
  tensor.codes = random_words(
      static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.rows * tensor.row_words),
      random);
  if (law.pattern == CodePattern::uniform) return;  // random bits are uniform already
  const VqFormat& format = tensor.format;
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.num_codebooks;
  CodeSource source(tensor, law, random);
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t row = 0; row < tensor.rows; ++row) {
        if (patterned && !patterned(b, row)) continue;
        source.begin_row();
        std::uint32_t* to = tensor.codes.data() +
                            ((b * tensor.heads + head) * tensor.rows + row) * tensor.row_words;
        for (std::int64_t i = 0; i < row_codes; ++i) {
          write_code(to, i * format.index_bits, format.index_bits, source.next(head, row, i));
        }
      }
    }
  }
}

}  // namespace

std::vector<double> channel_magnitudes(std::int64_t channels, Random& random) {
  std::vector<double> magnitudes(static_cast<std::size_t>(channels), 1.0);
  const std::int64_t outliers = std::max<std::int64_t>(1, channels / kChannelsAnOutlier);
  for (std::int64_t i = 0; i < outliers; ++i) {
    magnitudes[static_cast<std::size_t>(random.below(channels))] = kOutlier;
  }
  return magnitudes;
}

std::vector<std::uint16_t> outlier_rows(DType dtype, std::int64_t rows, std::int64_t channels,
                                        double zero_rows, Random& random) {
  const std::vector<double> magnitudes = channel_magnitudes(channels, random);
  std::vector<std::uint16_t> elements;
  elements.reserve(static_cast<std::size_t>(rows * channels));
  for (std::int64_t row = 0; row < rows; ++row) {
    const double gain = zero_rows > 0 && random.chance(zero_rows) ? 0 : 1;
    for (const double magnitude : magnitudes) {
      const double value = random.normal() * magnitude * gain;
      elements.push_back(element_from_float(dtype, static_cast<float>(value)));
    }
  }
  return elements;
}

QuantizedTensor make_hard_tensor(const VqFormat& format, DType dtype, const TensorShape& shape,
                                 double magnitude, Random& random) {
  if (format.in_parts()) {
    std::vector<QuantizedTensor> parts;
    for (const VqFormat& each : format.parts) {
      const VqFormat part = part_alone(each);
      TensorShape of_part = shape;
      of_part.columns = std::ssize(each.channels);
      of_part.units =
          kv_units(part, static_cast<int>(shape.heads), static_cast<int>(of_part.columns));
      parts.push_back(make_hard_tensor(part, dtype, of_part, magnitude, random));
      fill_codes(parts.back(), {}, random);
    }
    QuantizedTensor whole = join_rows(format, parts, shape.columns);
    add_hard_basis(whole, magnitude, random);
    return whole;
  }
  QuantizedTensor t;
  t.format = format;
  t.dtype = dtype;
  t.batch = shape.batch;
  t.heads = shape.heads;
  t.rows = shape.rows;
  t.columns = shape.columns;
  t.units = shape.units;
  t.expert_units = shape.expert_units;
  const std::int64_t row_codes = t.columns / format.vector_size * format.num_codebooks;
  t.row_words = (row_codes * format.index_bits + 31) / 32 + format.scale_words(t.columns) +
                format.group_scales().words(t.columns);
  const bool lattice = format.decoder == Decoder::e8p;
  t.codebooks = lattice              ? make_lattice(t, random)
                : format.is_scalar() ? make_scales(t, magnitude, random)
                                     : make_codebooks(t, magnitude, random);
  if (format.stage_scales) {
    const bool carried = lattice || format.entry_type == EntryType::int8;
    t.stage_scales = carried ? carrying_scales(t, magnitude, random)
                             : factors(t.units * format.num_codebooks, random);
  }
  if (format.output_scales) t.output_scales = factors(t.heads * t.rows, random);
  if (format.smooth) t.smooth = factors(t.heads * t.columns, random);
  add_hard_basis(t, magnitude, random);
  return t;
}

void fill_codes(QuantizedTensor& tensor, const CodeLaw& law, Random& random,
                const RowFilter& patterned) {
  if (tensor.format.in_parts()) {
    std::vector<QuantizedTensor> parts = split_rows(tensor, tensor.codes);
    for (QuantizedTensor& part : parts) fill_codes(part, law, random, patterned);
    tensor.codes = join_rows(tensor.format, parts, tensor.columns).codes;
    return;
  }
  fill_rows(tensor, law, random, patterned);
  if (tensor.format.scale_words(tensor.columns) > 0) {
    const std::int64_t codes = tensor.row_words - tensor.format.scale_words(tensor.columns);
    for (std::int64_t at = 0; at < std::ssize(tensor.codes); ++at) {
      if (at % tensor.row_words < codes) continue;
      tensor.codes[static_cast<std::size_t>(at)] = hard_scale(tensor, random);
    }
  }
  if (tensor.format.group_inputs > 0) fill_group_scales(tensor, random);
  if (tensor.format.layout.plain()) return;
  const std::vector<std::uint32_t> rows = std::move(tensor.codes);
  tensor.codes = random_words(
      static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.head_words()), random);
  auto from = rows.begin();
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t row = 0; row < tensor.rows; ++row) {
        for (std::int64_t word = 0; word < tensor.row_words; ++word) {
          tensor.codes[word_number(tensor, b, head, row, word)] = *from++;
        }
      }
    }
  }
}

}  // namespace vqgen

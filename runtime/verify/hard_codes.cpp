#include "runtime/verify/hard_codes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <optional>

#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

// Without libm where it can be: what it returns may differ from machine to machine.
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

// A stream of codes of one pattern, all codebooks alike.
class CodeSource {
 public:
  CodeSource(const CodeLaw& law, int count, Random& random)
      : pattern_(law.pattern), count_(count), random_(random) {
    if (pattern_ == CodePattern::zipf) slices_ = zipf_slices(count, law.skew, random);
    common_ = pattern_ == CodePattern::max_code ? static_cast<std::uint32_t>(count - 1) : any();
  }

  void begin_row() {
    if (pattern_ == CodePattern::one_hot) common_ = any();
  }

  std::uint32_t next() {
    switch (pattern_) {
      case CodePattern::zipf:
        return slices_[random_.bits() >> 48];
      case CodePattern::one_hot:
        return random_.chance(1.0 / 16) ? any() : common_;
      case CodePattern::uniform:
        return any();
      default:
        return common_;
    }
  }

 private:
  std::uint32_t any() { return static_cast<std::uint32_t>(random_.below(count_)); }

  CodePattern pattern_;
  int count_;
  Random& random_;
  std::vector<std::uint32_t> slices_;
  std::uint32_t common_ = 0;
};

// Codes as a histogram of each codebook has them, drawn by sums of counts: exactly, and however
// many accesses there are.
class CapturedSource {
 public:
  CapturedSource(const QuantizedTensor& tensor, const CodeLaw& law, Random& random)
      : format_(tensor.format), random_(random) {
    const std::int64_t unit_counts = std::int64_t{format_.residuals} * format_.entries();
    const std::int64_t items = std::ssize(law.counts) / (tensor.units * unit_counts);
    require(items > 0 && std::ssize(law.counts) == items * tensor.units * unit_counts,
            "captured codes: counts are not [item][unit][stage][entry] of the tensor");
    sums_.reserve(static_cast<std::size_t>(tensor.units * unit_counts));
    for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
      auto from = law.counts.begin() + (unit % items * tensor.units + unit) * unit_counts;
      for (int stage = 0; stage < format_.residuals; ++stage, from += format_.entries()) {
        std::partial_sum(from, from + format_.entries(), std::back_inserter(sums_));
      }
    }
  }

  std::uint32_t next(std::int64_t unit, std::int64_t stage) {
    const auto first = sums_.begin() + (unit * format_.residuals + stage) * format_.entries();
    const auto last = first + format_.entries();
    const std::int64_t all = *(last - 1);
    const auto entry = static_cast<std::uint32_t>(
        all == 0 ? random_.below(format_.entries())
                 : std::upper_bound(first, last, random_.below(all)) - first);
    if (format_.decoder == Decoder::table) return entry;
    return entry + static_cast<std::uint32_t>(random_.below(format_.codes() / kE8pEntries)) *
                       static_cast<std::uint32_t>(kE8pEntries);
  }

 private:
  VqFormat format_;
  Random& random_;
  std::vector<std::int64_t> sums_;  // [unit][stage][entry], of the entry and those before it
};

// Puts a code of index_bits at a bit of a packed row and leaves all other bits alone.
void write_code(std::uint32_t* row, std::int64_t bit, int index_bits, std::uint32_t code) {
  const std::uint64_t shift = static_cast<std::uint64_t>(bit) % 32;
  const std::uint64_t mask = ((std::uint64_t{1} << index_bits) - 1) << shift;
  const std::uint64_t value = std::uint64_t{code} << shift;
  std::uint32_t* word = row + bit / 32;
  const auto put = [](std::uint32_t& to, std::uint64_t bits, std::uint64_t where) {
    to = (to & ~static_cast<std::uint32_t>(where)) | static_cast<std::uint32_t>(bits);
  };
  put(word[0], value, mask);
  if ((mask >> 32) != 0) put(word[1], value >> 32, mask >> 32);
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

// Codes of a plain layout, row after row, by the law.
void fill_rows(QuantizedTensor& tensor, const CodeLaw& law,
               const std::function<bool(std::int64_t, std::int64_t)>& patterned, Random& random) {
  tensor.codes = random_words(
      static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.rows * tensor.row_words),
      random);
  if (law.pattern == CodePattern::uniform) return;  // random bits are that already
  const VqFormat& format = tensor.format;
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.residuals;
  CodeSource source(law, format.codes(), random);
  std::optional<CapturedSource> captured;
  if (law.pattern == CodePattern::captured) captured.emplace(tensor, law, random);
  const auto next = [&](std::int64_t head, std::int64_t row, std::int64_t code) {
    if (!captured) return source.next();
    const std::int64_t column = code / format.residuals * format.vector_size;
    return captured->next(unit_of(tensor, head, row, column), code % format.residuals);
  };
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t row = 0; row < tensor.rows; ++row) {
        if (!patterned(b, row)) continue;
        source.begin_row();
        std::uint32_t* to = tensor.codes.data() +
                            ((b * tensor.heads + head) * tensor.rows + row) * tensor.row_words;
        for (std::int64_t i = 0; i < row_codes; ++i) {
          write_code(to, i * format.index_bits, format.index_bits, next(head, row, i));
        }
      }
    }
  }
}

}  // namespace

void fill_codes(QuantizedTensor& tensor, const CodeLaw& law,
                const std::function<bool(std::int64_t, std::int64_t)>& patterned, Random& random) {
  fill_rows(tensor, law, patterned, random);
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

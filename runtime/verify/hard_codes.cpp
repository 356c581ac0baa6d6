#include "runtime/verify/hard_codes.h"

#include <cstddef>

namespace vqgen {
namespace {

// 2^16 equal slices of probability, each with its code.
std::vector<std::uint32_t> zipf_slices(int count, Random& random) {
  constexpr std::size_t kSlices = 65536;
  double total = 0;
  for (int rank = 1; rank <= count; ++rank) total += 1.0 / rank;
  // An odd factor permutes the codes, whose number is a power of two.
  const auto factor = static_cast<std::uint32_t>(random.bits()) | 1u;
  const auto offset = static_cast<std::uint32_t>(random.bits());
  std::vector<std::uint32_t> codes(kSlices);
  double below = 0;
  std::size_t slice = 0;
  for (int rank = 1; rank <= count; ++rank) {
    below += 1.0 / rank;
    const std::uint32_t code = (static_cast<std::uint32_t>(rank) * factor + offset) &
                               static_cast<std::uint32_t>(count - 1);
    for (; slice < kSlices && static_cast<double>(slice) < below / total * kSlices; ++slice) {
      codes[slice] = code;
    }
  }
  return codes;
}

// A stream of codes of one pattern.
class CodeSource {
 public:
  CodeSource(CodePattern pattern, int count, Random& random)
      : pattern_(pattern), count_(count), random_(random) {
    if (pattern == CodePattern::zipf) slices_ = zipf_slices(count, random);
    common_ = pattern == CodePattern::max_code ? static_cast<std::uint32_t>(count - 1) : any();
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

}  // namespace

void fill_codes(QuantizedTensor& tensor, CodePattern pattern,
                const std::function<bool(std::int64_t, std::int64_t)>& patterned, Random& random) {
  const std::size_t words =
      static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.rows * tensor.row_words);
  tensor.codes.resize(words);
  for (std::size_t i = 0; i < words; i += 2) {
    const std::uint64_t bits = random.bits();
    tensor.codes[i] = static_cast<std::uint32_t>(bits);
    if (i + 1 < words) tensor.codes[i + 1] = static_cast<std::uint32_t>(bits >> 32);
  }
  if (pattern == CodePattern::uniform) return;  // random bits are that already
  const VqFormat& format = tensor.format;
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.residuals;
  CodeSource source(pattern, format.codes(), random);
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t row = 0; row < tensor.rows; ++row) {
        if (!patterned(b, row)) continue;
        source.begin_row();
        std::uint32_t* to = tensor.codes.data() +
                            ((b * tensor.heads + head) * tensor.rows + row) * tensor.row_words;
        for (std::int64_t i = 0; i < row_codes; ++i) {
          write_code(to, i * format.index_bits, format.index_bits, source.next());
        }
      }
    }
  }
}

}  // namespace vqgen

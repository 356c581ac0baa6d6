#include "quantizer/pack.h"

#include <fmt/format.h>
#include <vq/layout/codes.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "quantizer/parts.h"

namespace vqgen {
namespace {

// Sizes of a tensor's rows, in codes, words and rows.
struct PackedRows {
  explicit PackedRows(const QuantizedTensor& t)
      : codes(static_cast<std::size_t>(t.columns / t.format.vector_size * t.format.num_codebooks)),
        words(static_cast<std::size_t>(t.row_words)),
        rows(static_cast<std::size_t>(t.batch * t.heads * t.rows)) {}
  std::size_t codes, words, rows;
};

void require_size(const char* what, std::size_t words, std::int64_t expected) {
  if (words == static_cast<std::size_t>(expected)) return;
  throw Error(
      ErrorKind::bad_input,
      fmt::format("repack: the codes to {} are {} words where rows and layout make {}; give "
                  "all of them, with their padding",
                  what, words, expected));
}

}  // namespace

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

std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor) {
  require_one_format(tensor.format, "unpack");
  if (!tensor.format.layout.plain()) {
    QuantizedTensor plain = tensor;
    repack(plain, CodeLayout{});
    return unpack_codes(plain);
  }
  const PackedRows sizes(tensor);
  std::vector<std::uint32_t> codes(sizes.rows * sizes.codes);
  for (std::size_t row = 0; row < sizes.rows; ++row) {
    unpack_row(std::span(tensor.codes).subspan(row * sizes.words, sizes.words),
               tensor.format.index_bits, std::span(codes).subspan(row * sizes.codes, sizes.codes));
  }
  return codes;
}

void pack_codes(std::span<const std::uint32_t> codes, QuantizedTensor& tensor) {
  require_one_format(tensor.format, "pack");
  const CodeLayout layout = tensor.format.layout;
  const PackedRows sizes(tensor);
  tensor.codes.resize(sizes.rows * sizes.words);
  for (std::size_t row = 0; row < sizes.rows; ++row) {
    pack_row(codes.subspan(row * sizes.codes, sizes.codes), tensor.format.index_bits,
             std::span(tensor.codes).subspan(row * sizes.words, sizes.words));
  }
  tensor.format.layout = {};
  repack(tensor, layout);
}

std::int64_t layout_words(const CodeLayout& layout, const CodeRows& sizes) {
  if (const std::string problem = layout_problem(layout); !problem.empty()) {
    throw Error(ErrorKind::bad_input, "repack: " + problem);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr double kMostWords = 1e15;
  double words = 1;
  for (const std::int64_t size : {sizes.heads, sizes.rows, sizes.row_words}) {
    words *= static_cast<double>(size);
    if (size < 1 || size > kMost || words > kMostWords) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("repack: {} heads of {} rows of {} words are none, or more than any "
                              "memory has; give the sizes of the tensor",
                              sizes.heads, sizes.rows, sizes.row_words));
    }
  }
  return sizes.heads * stored_words(layout, sizes.rows, sizes.row_words);
}

void repack(std::span<const std::uint32_t> from, const CodeLayout& from_layout,
            std::span<std::uint32_t> to, const CodeLayout& to_layout, const CodeRows& sizes) {
  require_size("read", from.size(), layout_words(from_layout, sizes));
  require_size("write", to.size(), layout_words(to_layout, sizes));
  std::fill(to.begin(), to.end(), 0u);
  const std::int64_t from_head = std::ssize(from) / sizes.heads;
  const std::int64_t to_head = std::ssize(to) / sizes.heads;
  const std::int64_t from_words = vq::padded_words(from_layout, sizes.row_words);
  const std::int64_t to_words = vq::padded_words(to_layout, sizes.row_words);
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      const std::uint32_t* const from_row =
          from.data() + head * from_head + vq::row_place<vq::i64>(from_layout, from_words, row);
      std::uint32_t* const to_row =
          to.data() + head * to_head + vq::row_place<vq::i64>(to_layout, to_words, row);
      for (std::int64_t word = 0; word < sizes.row_words; ++word) {
        to_row[vq::word_place<vq::i64>(to_layout, word)] =
            from_row[vq::word_place<vq::i64>(from_layout, word)];
      }
    }
  }
}

void repack(QuantizedTensor& tensor, const CodeLayout& layout) {
  if (layout == tensor.format.layout) return;
  if (const std::string problem = layout_problem(tensor.format, layout); !problem.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("repack: {}; --operand takes keys or values alone", problem));
  }
  const CodeRows sizes{tensor.batch * tensor.heads, tensor.rows, tensor.row_words};
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(layout_words(layout, sizes)));
  repack(tensor.codes, tensor.format.layout, codes, layout, sizes);
  tensor.codes = std::move(codes);
  tensor.format = with_layout(std::move(tensor.format), layout);
}

}  // namespace vqgen

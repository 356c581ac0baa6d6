#include "quantizer/repack.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace vqgen {
namespace {

void require_size(const char* what, std::size_t words, std::int64_t expected) {
  if (words == static_cast<std::size_t>(expected)) return;
  throw Error(
      ErrorKind::bad_input,
      fmt::format("repack: the codes to {} are {} words where rows and layout make {}; give "
                  "all of them, with their padding",
                  what, words, expected));
}

// The words of one head, from `from` to `to`.
void repack_head(const std::uint32_t* from, const vq::CodeLayout& from_layout, std::uint32_t* to,
                 const vq::CodeLayout& to_layout, const CodeRows& sizes) {
  const std::int64_t from_words = vq::padded_words(from_layout, sizes.row_words);
  const std::int64_t to_words = vq::padded_words(to_layout, sizes.row_words);
  for (std::int64_t row = 0; row < sizes.rows; ++row) {
    const std::uint32_t* const from_row =
        from + vq::row_place<vq::i64>(from_layout, from_words, row);
    std::uint32_t* const to_row = to + vq::row_place<vq::i64>(to_layout, to_words, row);
    for (std::int64_t word = 0; word < sizes.row_words; ++word) {
      to_row[vq::word_place<vq::i64>(to_layout, word)] =
          from_row[vq::word_place<vq::i64>(from_layout, word)];
    }
  }
}

}  // namespace

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
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    repack_head(from.data() + head * from_head, from_layout,
                to.data() + head * to_head, to_layout, sizes);
  }
}

void repack(QuantizedTensor& tensor, const CodeLayout& layout) {
  if (layout == tensor.format.layout) return;
  const CodeRows sizes{tensor.batch * tensor.heads, tensor.rows, tensor.row_words};
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(layout_words(layout, sizes)));
  repack(tensor.codes, tensor.format.layout, codes, layout, sizes);
  tensor.codes = std::move(codes);
  tensor.format.layout = layout;
}

}  // namespace vqgen

// CodeLayout: how the codes of a tensor are stored, in groups of rows and runs of words, by which
// kernels bring words of several rows at once. A fact of the data, which ops of all row counts
// read; so it is part of the format, and no plan's to choose. templates/vq/layout/codes.h has the
// order.
#pragma once

#include <vq/layout/codes.h>

#include <cstdint>
#include <string>

#include "core/fields.h"

namespace vqgen {

// Powers of two whose product is at most kMostRunWords, an access; {1, 1} is plain: row after row.
struct CodeLayout {
  static constexpr int kMostRunWords = 4;
  int rows = 1;
  int words = 1;

  static constexpr auto fields() {
    using L = CodeLayout;
    return std::make_tuple(
        field("rows", &L::rows, optional_in(1, kMostRunWords), "rows of a group: 1, 2 or 4"),
        field("words", &L::words, optional_in(1, kMostRunWords),
              "words in a run of each of them: 1, 2 or 4; rows times words is at most 4"));
  }
  bool operator==(const CodeLayout&) const = default;
  bool plain() const { return *this == CodeLayout{}; }
};

// What is wrong with it and the remedy; empty where nothing is.
std::string layout_problem(const CodeLayout& layout);

// As kernels have it.
inline vq::CodeLayout kernel_layout(const CodeLayout& layout) {
  return {layout.rows, layout.words};
}

// Words that `rows` rows of `row_words` words take, of one head or of weights: padded to whole
// groups and runs.
inline std::int64_t stored_words(const CodeLayout& layout, std::int64_t rows,
                                 std::int64_t row_words) {
  return vq::stored_words(kernel_layout(layout), rows, row_words);
}

// Codes are aligned to as many bytes, beside what a plan asks for.
inline int alignment_bytes(const CodeLayout& layout) { return 4 * layout.rows * layout.words; }

}  // namespace vqgen

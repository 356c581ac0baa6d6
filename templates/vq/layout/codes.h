// Packed codes: a row is the codes of one token of one head (KV cache) or of one output feature
// (weights), `index_bits` each, least significant bit first, padded to a whole 32-bit word. The
// residual stages of a sub-vector are adjacent:
//
//   code number = sub_vector * residuals + stage        bit = code number * index_bits
//
// A code may straddle two words. No reader touches a word past the row's last, except padding.
//
// Rows are stored in groups of R: a run of W words of the group's first row, of its second, ..,
// then the next run of each. With R = 2 and W = 2:
//
//   row 0: w0 w1 | row 1: w0 w1 | row 0: w2 w3 | row 1: w2 w3 | .. row 2: w0 w1 | row 3: w0 w1 | ..
//
// so that one access loads words of several rows. With R = 32 the lanes of a warp, one row each,
// read a word of all rows as one line: for kernels that go through rows word by word. Rows are
// padded to whole groups and words to whole runs with arbitrary values. A word's offset is its
// row's plus its own.
#pragma once

#include <vq/annotations.h>
#include <vq/plan.h>

namespace vq {

VQ_HD constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
VQ_HD constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
VQ_HD constexpr int round_up(int a, int unit) { return ceil_div(a, unit) * unit; }

// Words of a row that stores `elements` numbers (a multiple of vector_size).
VQ_HD constexpr i64 row_words(i64 elements, int vector_size, int num_codebooks, int index_bits) {
  return ceil_div(elements / vector_size * num_codebooks * index_bits, i64{32});
}

// R and W, powers of two whose product is at most 4, an access; or {32, 1}. {1, 1} is row after
// row, aligned to a word; all others are aligned to R * W words, four at most.
struct CodeLayout {
  int rows = 1;
  int words = 1;

  VQ_HD constexpr bool plain() const { return rows == 1 && words == 1; }

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    visit("rows", &CodeLayout::rows, Range{1, 32},
          "rows of a group: 1, 2 or 4; of wide sub-vectors also 32");
    visit("words", &CodeLayout::words, Range{1, 4},
          "words in a run of each of them: 1, 2 or 4; rows times words is at most 4");
  }
};

// Words from a row to the next, were rows not in groups.
VQ_HD constexpr i64 padded_words(CodeLayout layout, i64 row_words) {
  return ceil_div(row_words, i64{layout.words}) * layout.words;
}
// Words of a tensor's or a head's rows.
VQ_HD constexpr i64 stored_words(CodeLayout layout, i64 rows, i64 row_words) {
  return ceil_div(rows, i64{layout.rows}) * layout.rows * padded_words(layout, row_words);
}

// Word `word` of row `row` is number row_place + word_place.
template <class Int>
VQ_HD constexpr Int row_place(CodeLayout layout, Int padded_words, Int row) {
  return row / layout.rows * (layout.rows * padded_words) + row % layout.rows * layout.words;
}
template <class Int>
VQ_HD constexpr Int word_place(CodeLayout layout, Int word) {
  return word / layout.words * (layout.words * layout.rows) + word % layout.words;
}

// Rows of which one access loads words, if lanes share a row evenly with `bits` bits each: a group
// if shares are whole runs, else one.
VQ_HD constexpr int rows_together(CodeLayout layout, int bits) {
  return bits % (32 * layout.words) == 0 ? layout.rows : 1;
}

}  // namespace vq

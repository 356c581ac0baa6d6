// From the codes of one sub-vector to operand words of a tensor core, for all dataflows that have
// such operands. What the words hold:
//
//   kEntry   the unscaled entry of one stage: stages are added up by products
//   kHeld    the same as levels hold it: bytes of int8 entries, four a word
//   kSum     the scaled entries of all stages, added up in fp32 and rounded to 16 bits
#pragma once

#include <vq/codebook/codebook.cuh>
#include <vq/codes.cuh>

namespace vq {

enum class Rebuilt : int { kEntry = 0, kHeld = 1, kSum = 2 };

// The sub-vector of unit first + u (codebook.cuh says why two); `pass` is the stage, 0 for sums.
// code(stage) gives a u32 or a CodeByte.
template <Rebuilt kWhat, Element kElement, class Book, class Code>
VQ_DEVICE void rebuild(u32* words, const Book& book, int first, int u, int pass, Code code) {
  if constexpr (kWhat == Rebuilt::kSum) {
    float value[Book::kVectorSize];
    book.decode(value, first + u, code);
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize; i += 2) {
      words[i / 2] = pack2<kElement>(value[i], value[i + 1]);
    }
  } else if constexpr (kWhat == Rebuilt::kHeld) {
    const auto held = book.held(first, u, pass, code(pass));
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize / 4; ++i) words[i] = word_of(held, i);
  } else {
    const auto entry = book.entry(first, u, pass, code(pass));
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize / 2; ++i) words[i] = word_of(entry, i);
  }
}

}  // namespace vq

// What a call asks of the addresses of its arguments, in bytes: what its kernels load or store at
// once. The library refuses less (library/examine.h), and sweeps run each plan on no more.
#pragma once

#include <vq/layout/launch.h>

#include <cstddef>

namespace vqgen {

// Beside these, rows of codes and rows of elements begin at multiples of what CallShape says.
inline constexpr std::size_t kElementAlignment =
    2;                                            // queries, results, and new tokens of kv_append
inline constexpr std::size_t kWordAlignment = 4;  // scales, log-sum-exps, integers
inline constexpr std::size_t kEntryAlignment =
    16;  // codebooks, the scales of scalar ops, and the workspace

// Which of them an array has; access: CallShape::element_bytes, of 8-bit codes code_bytes.
enum class Aligned { word, element, access, entry };

// Bytes of slack before arrays, which stand at multiples of 256 otherwise.
struct Misalignment {
  std::size_t codes = 0;
  std::size_t rows = 0;      // of elements, CallShape::element_bytes
  std::size_t elements = 0;  // queries, and new tokens of kv_append
  std::size_t results = 0;   // out of attention_decode, y
  std::size_t entries = 0;   // codebooks, and the workspace
  std::size_t words = 0;     // scales, log-sum-exps, integers

  std::size_t before(Aligned aligned) const {
    return aligned == Aligned::word      ? words
           : aligned == Aligned::element ? elements
           : aligned == Aligned::access  ? rows
                                         : entries;
  }
};

// Arrays then stand on no more than a call of this shape asks for.
inline Misalignment least_alignment(const vq::CallShape& shape) {
  return {.codes = static_cast<std::size_t>(shape.code_bytes),
          .rows = static_cast<std::size_t>(shape.element_bytes),
          .elements = kElementAlignment,
          .results = kElementAlignment,
          .entries = kEntryAlignment,
          .words = kWordAlignment};
}

}  // namespace vqgen

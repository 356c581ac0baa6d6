// Alignment, in bytes, that a call requires of its arguments: the width of its kernels' loads and
// stores. The library refuses less (library/examine.h), and sweeps run each plan with no more.
#pragma once

#include <vq/layout/launch.h>

#include <cstddef>

namespace vqgen {

// In addition, rows of codes and rows of elements begin at multiples that CallShape gives.
inline constexpr std::size_t kElementAlignment =
    2;                                            // queries, results, and new tokens of kv_append
inline constexpr std::size_t kWordAlignment = 4;  // scales, log-sum-exps, integers
inline constexpr std::size_t kEntryAlignment =
    16;  // codebooks, rotations, the scales of scalar ops, and the workspace

// The kind of alignment of an array. access: CallShape::element_bytes, or code_bytes for 8-bit
// codes.
enum class Aligned { word, element, access, entry };

// Bytes of slack before arrays that would otherwise begin at multiples of 256.
struct Misalignment {
  std::size_t codes = 0;
  std::size_t rows = 0;      // of elements, CallShape::element_bytes
  std::size_t elements = 0;  // queries, and new tokens of kv_append
  std::size_t results = 0;   // out of attention_decode, y
  std::size_t entries = 0;   // codebooks, rotations, and the workspace
  std::size_t words = 0;     // scales, log-sum-exps, integers

  std::size_t before(Aligned aligned) const {
    return aligned == Aligned::word      ? words
           : aligned == Aligned::element ? elements
           : aligned == Aligned::access  ? rows
                                         : entries;
  }
};

// With this slack, arrays have only the alignment that a call of this shape requires.
inline Misalignment least_alignment(const vq::CallShape& shape) {
  return {.codes = static_cast<std::size_t>(shape.code_bytes),
          .rows = static_cast<std::size_t>(shape.element_bytes),
          .elements = kElementAlignment,
          .results = kElementAlignment,
          .entries = kEntryAlignment,
          .words = kWordAlignment};
}

}  // namespace vqgen

// What a call asks of the addresses of its arguments, in bytes: what its kernels load or store at
// once. The library refuses less (library/examine.h), and sweeps run each plan on no more.
#pragma once

#include <cstddef>

namespace vqgen {

// Beside these, rows of codes and rows of elements begin at multiples of what CallShape says.
inline constexpr std::size_t kElementAlignment =
    2;                                            // queries, results, and new tokens of kv_append
inline constexpr std::size_t kWordAlignment = 4;  // scales, log-sum-exps, integers
inline constexpr std::size_t kEntryAlignment =
    16;  // codebooks, the scales of scalar ops, and the workspace

}  // namespace vqgen

// Scales of groups of inputs, and minima, behind the codes of rows of weights
// (templates/vq/layout/group_scales.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quantizer/encode.h"

namespace vqgen {

// What a group has: a weight is its number times the scale, less the minimum, which is 0 in formats
// without minima.
struct GroupFactor {
  float scale = 0;
  float minimum = 0;
  float apply(float number) const { return scale * number - minimum; }
};

// The factors of a row, one per group, from the words that the row ends with.
std::vector<GroupFactor> group_factors(const VqFormat& format, std::int64_t inputs,
                                       std::span<const std::uint32_t> words);

// The words of the factors nearest to `wanted`, one per group, whose numbers are 0 or above.
// Error(bad_input) that begins with `name` if f16 holds none of their size.
std::vector<std::uint32_t> group_factor_words(const VqFormat& format,
                                              std::span<const GroupFactor> wanted,
                                              const std::string& name);

// Writes the number of each group, and the f16 of each block one after the other, as bits, to
// `words`, which are zeros. Requires group_scale_bits and the words of a row.
void put_group_factors(const VqFormat& format, std::span<const std::uint32_t> numbers,
                       std::span<const std::uint16_t> blocks, std::span<std::uint32_t> words);

// `values` as the numbers of their groups. A group's minimum, if the format has one, brings its
// least value to 0, with group_scale_bits from below alone, and its scale its root mean square to
// 1, both as the format holds them; a group whose scale is 0 becomes zeros. The words of all
// factors, row after row, to `words`.
FloatTensor in_groups(FloatTensor values, const VqFormat& format, const std::string& name,
                      std::vector<std::uint32_t>* words = nullptr);

// encode() of a format with such scales: codes of in_groups(), then in each row the factors that
// fit the codes best, if all of them together are nearer.
QuantizedTensor encode_groups(const FloatTensor& values, Codebooks codebooks);

// Applies the factors of groups to `values`, which the codes of `tensor` stand for.
void apply_groups(FloatTensor& values, const QuantizedTensor& tensor);

}  // namespace vqgen

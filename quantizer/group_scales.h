// Scales of groups of inputs behind the codes of rows of weights
// (templates/vq/layout/group_scales.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quantizer/encode.h"

namespace vqgen {

// The scales of a row, one per group, from the words that the row ends with.
std::vector<float> group_scales(const VqFormat& format, std::int64_t inputs,
                                std::span<const std::uint32_t> words);

// The words of the scales nearest to `wanted`, one per group, each 0 or above. Error(bad_input)
// that begins with `name` if f16 holds none of their size.
std::vector<std::uint32_t> group_scale_words(const VqFormat& format, std::span<const float> wanted,
                                             const std::string& name);

// Writes s of each group and d of each block, as bits of f16, to `words`, which are zeros. Requires
// group_scale_bits and the words of a row.
void put_group_scales(const VqFormat& format, std::span<const std::uint32_t> numbers,
                      std::span<const std::uint16_t> blocks, std::span<std::uint32_t> words);

// `values` with each group divided by its scale, which is its root mean square as the format holds
// it; a group whose scale is 0 becomes zeros. The words of all scales, row after row, to `words`.
FloatTensor in_groups(FloatTensor values, const VqFormat& format, const std::string& name,
                      std::vector<std::uint32_t>* words = nullptr);

// encode() of a format with such scales: codes of in_groups(), then in each row the scales that fit
// the codes best, if all of them together are nearer.
QuantizedTensor encode_groups(const FloatTensor& values, Codebooks codebooks);

// Multiplies the elements of `values`, which the codes of `tensor` stand for, by their scales.
void multiply_groups(FloatTensor& values, const QuantizedTensor& tensor);

}  // namespace vqgen

// The basis that rows of a cache stand in (vq/layout/basis.h), in double and in the plainest way:
// no code is shared with kernels or quantizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

// (x - mean) rotation of one head, or x rotation without `centered`. [columns].
std::vector<double> into_basis(const QuantizedTensor& tensor, std::int64_t head,
                               std::span<const double> x, bool centered = true);

// z rotation^T + weight mean: of a sum of rows whose weights add up to `weight`.
std::vector<double> out_of_basis(const QuantizedTensor& tensor, std::int64_t head,
                                 std::span<const double> z, double weight = 1);

// x . mean of one head; 0 without a mean.
double dot_mean(const QuantizedTensor& tensor, std::int64_t head, std::span<const double> x);

// Draws the basis that the format asks for: a mean of the given magnitude, a random rotation. Draws
// nothing for other formats.
void add_hard_basis(QuantizedTensor& tensor, double magnitude, Random& random);

}  // namespace vqgen

// The two transforms of keys (VecInfer eq. 3-7): smoothing, which divides each channel by a factor,
// and rotation by the Hadamard matrix. With q~ = q diag(lambda) H and k~ = k diag(lambda)^-1 H the
// product q.k stays as it is, because H is orthonormal and symmetric.
#pragma once

#include <span>
#include <vector>

#include "core/format/vq_format.h"
#include "quantizer/units.h"

namespace vqgen {

// lambda = sqrt(max |K|) for each head and channel over all batches and tokens (VecInfer eq. 4);
// a channel that is all zero gets the least of its head, 1 where all are. Returns
// [heads][columns].
std::vector<float> smooth_factors(const FloatTensor& keys);

// row <- row H in place (VecInfer eq. 5: natural order, factor 1/sqrt(n)), the matrix of
// <vq/layout/hadamard.h>, which must have one for its channels.
void hadamard(std::span<float> row);

// k~ of every row, as the format asks for. `smooth` is [heads][columns], or empty where the format
// does not smooth.
void transform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth);
// The inverse: from k~ back to k.
void untransform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth);

}  // namespace vqgen

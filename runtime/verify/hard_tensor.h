// A quantized tensor with codebooks made hard, all but its codes.
#pragma once

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

inline constexpr double kOutlier = 8;  // an outlier's magnitude over its neighbours'

// 1 a channel, with one in 64 (one at least) at kOutlier.
std::vector<double> channel_magnitudes(std::int64_t channels, Random& random);

// [rows][channels] of normal elements, each channel at its magnitude. Some rows, of this share, are
// all zeros.
std::vector<std::uint16_t> outlier_rows(DType dtype, std::int64_t rows, std::int64_t channels,
                                        double zero_rows, Random& random);

struct TensorShape {
  std::int64_t batch = 1, heads = 1, rows = 0, columns = 0, units = 0;
};

// Entries of the given magnitude and mixed sign, halved with each residual stage down to 1/16; in
// the first stage one entry in 16 has an outlier element, and one unit in 8 an outlier column
// throughout. Stage scales, output scales and smooth factors, where the format has them, are in
// 0.5..2. A lattice has its own table, in a random order for each unit and stage, and magnitude and
// halving in its stage scales. Codes are left empty.
QuantizedTensor make_hard_tensor(const VqFormat& format, DType dtype, const TensorShape& shape,
                                 double magnitude, Random& random);

}  // namespace vqgen

// A quantized tensor with hard codebooks, and codes drawn by pattern straight into packed rows, in
// the order of templates/vq/layout/codes.h.
#pragma once

#include <functional>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

inline constexpr double kOutlier = 8;  // an outlier's magnitude over its neighbours'

// 1 per channel; one in 64, at least one, has kOutlier.
std::vector<double> channel_magnitudes(std::int64_t channels, Random& random);

// [rows][channels] of normal elements, each channel at its magnitude. A share `zero_rows` of the
// rows is all zeros.
std::vector<std::uint16_t> outlier_rows(DType dtype, std::int64_t rows, std::int64_t channels,
                                        double zero_rows, Random& random);

struct TensorShape {
  std::int64_t batch = 1, heads = 1, rows = 0, columns = 0, units = 0, expert_units = 0;
};

// Entries of the given magnitude and mixed sign, halved with each residual stage down to 1/16; in
// the first stage one entry in 16 has an outlier element, and one unit in 8 an outlier column
// throughout. Stage scales, output scales and smooth factors, where the format has them, are in
// 0.5..2. The mean has the entries' magnitude; a rotation is random. A lattice has its own table,
// in a random order for each unit and stage, and magnitude and halving in its stage scales. Codes
// are left empty.
QuantizedTensor make_hard_tensor(const VqFormat& format, DType dtype, const TensorShape& shape,
                                 double magnitude, Random& random);

enum class CodePattern {
  uniform,    // each code equally likely
  zipf,       // the r-th most frequent code has weight r^-skew; which code that is, is random
  one_hot,    // each row mostly (15/16) one code of its own
  all_equal,  // one random code throughout
  max_code,   // the last code throughout
  captured,   // as often as a histogram of each codebook says
};
template <>
inline constexpr auto enum_names<CodePattern> =
    std::array{"uniform", "zipf", "one_hot", "all_equal", "max_code", "captured"};

// A pattern, and the parameters of zipf and captured.
struct CodeLaw {
  CodePattern pattern = CodePattern::uniform;
  double skew = 1;                        // exponent of zipf
  std::vector<std::int64_t> counts = {};  // of captured: [item][unit][stage][entry], at least one
                                          // item; unit u uses item u modulo their number
};

// Fills tensor.codes, whose sizes and format are set, with random bits, then by pattern in the rows
// for which patterned(sequence, row) holds (empty: all). Codebooks without captured accesses get
// uniform codes; a lattice's signs are always uniform.
using RowFilter = std::function<bool(std::int64_t sequence, std::int64_t row)>;
void fill_codes(QuantizedTensor& tensor, const CodeLaw& law, Random& random,
                const RowFilter& patterned = {});

}  // namespace vqgen

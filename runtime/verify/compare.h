// Whether a kernel's result is right, and by how much it is not. NaN never passes.
#pragma once

#include <cstdint>
#include <span>

#include "core/format/element.h"

namespace vqgen {

struct Comparison {
  double rel_err = 0;        // ||actual - reference|| / ||reference||; ||actual|| for reference 0
  double max_abs_err = 0;    // of one element
  double max_local_err = 0;  // of one element, |difference| / (|reference| + rms of reference)
  std::int64_t nonfinite_mismatches = 0;  // not both finite, and not the same infinity
  std::int64_t worst = -1;  // index of max_local_err, or of the first mismatch; -1: all equal
  bool ok = false;
};

// Relative error allowed to an attention or gemv result of this element type: about twice the most
// that rounding one number to 16 bits costs (2^-11 for f16, 2^-8 for bf16).
double tolerance(DType dtype);

// ok iff no mismatch, rel_err <= rel_tolerance, and max_local_err <= 16 times that: the norm of
// many elements would hide a single wrong one. With a mismatch the errors are infinite. Shapes are
// the caller's; sizes must agree or Error(bad_input) is thrown.
Comparison compare(std::span<const double> reference, std::span<const float> actual,
                   double rel_tolerance);
// With `tolerances` times tolerance(dtype).
Comparison compare(std::span<const double> reference, std::span<const std::uint16_t> actual,
                   DType dtype, double tolerances = 1);

// Log-sum-exp, natural log; equal infinities agree. ok iff each |difference| is within
// 2 tolerance(dtype) (1 + |reference|). lse itself is fp32 and good to 1e-6, but a kernel may round
// the query operand of its scores to 16 bits: with scores spread by 2.5 that moves each by some
// 5e-4 (f16) or 4e-3 (bf16), more where an outlier makes the score large, and a sequence of one
// token has nothing to average it with. With `tolerances` times as much.
Comparison compare_lse(std::span<const double> reference, std::span<const float> actual,
                       DType dtype, double tolerances = 1);

}  // namespace vqgen

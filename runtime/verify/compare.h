// Judges whether a kernel's result is right, and how far off it is. NaN never passes.
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

// The relative error allowed to an attention or gemv result of this element type: about twice the
// largest error of rounding one number to 16 bits (2^-11 for f16, 2^-8 for bf16).
double tolerance(DType dtype);

// ok iff no mismatch, rel_err <= rel_tolerance, and max_local_err <= 16 times that, since the norm
// of many elements would hide one wrong element. A mismatch makes the errors infinite. An error of
// at most `least` in an element is none. Throws Error(bad_input) if sizes differ.
Comparison compare(std::span<const double> reference, std::span<const float> actual,
                   double rel_tolerance, double least = 0);
// The tolerance is `tolerances` times tolerance(dtype), `least` the least positive number of the
// type: results that vanish in it have no digits.
Comparison compare(std::span<const double> reference, std::span<const std::uint16_t> actual,
                   DType dtype, double tolerances = 1);

// Compares log-sum-exps (natural log); equal infinities agree. ok iff each |difference| is within 2
// tolerance(dtype) (1 + |reference|) `tolerances`: lse is fp32, but a kernel may round the query
// operand of its scores to 16 bits, and a sequence of one token does not average that out.
Comparison compare_lse(std::span<const double> reference, std::span<const float> actual,
                       DType dtype, double tolerances = 1);

}  // namespace vqgen

#include "runtime/ops/op.h"

#include <fmt/format.h>

namespace vqgen {

ItemReport report_of(const Comparison& comparison, DType dtype, double tolerances) {
  ItemReport report;
  report.ok = comparison.ok;
  report.rel_err = comparison.rel_err;
  report.max_abs_err = comparison.max_abs_err;
  report.tolerance = tolerances * tolerance(dtype);
  if (!comparison.ok) {
    report.why =
        fmt::format("element {} is off by {:.2e} of its size, {} elements are not finite",
                    comparison.worst, comparison.max_local_err, comparison.nonfinite_mismatches);
  }
  return report;
}

ItemReport report_of(const AttentionResult& reference, const AttentionOutput& output, DType dtype,
                     double tolerances) {
  ItemReport report =
      report_of(compare(reference.out, output.out, dtype, tolerances), dtype, tolerances);
  const Comparison lse = compare_lse(reference.lse, output.lse, dtype, tolerances);
  if (!lse.ok) {
    report.ok = false;
    report.why += fmt::format("{}log-sum-exp {} is off by {:.2e}", report.why.empty() ? "" : "; ",
                              lse.worst, lse.max_abs_err);
  }
  report.lse_max_abs_err = lse.max_abs_err;
  return report;
}

}  // namespace vqgen

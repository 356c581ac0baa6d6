#include "runtime/run.h"

#include <fmt/format.h>

#include "runtime/execute.h"
#include "runtime/stored_data.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/reference_attention.h"
#include "runtime/verify/reference_linear.h"

namespace vqgen {
namespace {

ItemReport report_of(const std::string& name, const Comparison& comparison, DType dtype) {
  ItemReport report;
  report.name = name;
  report.ok = comparison.ok;
  report.rel_err = comparison.rel_err;
  report.max_abs_err = comparison.max_abs_err;
  report.tolerance = tolerance(dtype);
  if (!comparison.ok) {
    report.why =
        fmt::format("element {} is off by {:.2e} of its size, {} elements are not finite",
                    comparison.worst, comparison.max_local_err, comparison.nonfinite_mismatches);
  }
  return report;
}

ItemReport report_of(const std::string& name, const AttentionResult& reference,
                     const AttentionOutput& output, DType dtype) {
  ItemReport report = report_of(name, compare(reference.out, output.out, dtype), dtype);
  const Comparison lse = compare_lse(reference.lse, output.lse, dtype);
  if (!lse.ok) {
    report.ok = false;
    report.why += fmt::format("{}log-sum-exp {} is off by {:.2e}", report.why.empty() ? "" : "; ",
                              lse.worst, lse.max_abs_err);
  }
  report.lse_max_abs_err = lse.max_abs_err;
  return report;
}

class Runner {
 public:
  Runner(const Prepared& prepared, Backend& backend)
      : prepared_(prepared),
        backend_(backend),
        kernel_(backend.load(prepared.artifact, prepared.source)) {}

  ItemReport run(const std::string& name, const AttentionDecode& op, const AttentionData& data) {
    const AttentionOutput output =
        execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data);
    const double scale = static_cast<double>(softmax_scale(op));
    ItemReport report = report_of(name, reference_attention(data, scale), output, op.dtype);
    if (!data.original_keys.empty() && !data.original_values.empty()) {
      const AttentionResult plain = reference_attention_unquantized(data, scale);
      report.rel_err_unquantized = compare(plain.out, output.out, op.dtype).rel_err;
    }
    return report;
  }

  ItemReport run(const std::string& name, const KvAppend& op, const AppendData& data) {
    const AppendVerdict verdict =
        judge_append(data, execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data));
    ItemReport report;
    report.name = name;
    report.ok = verdict.ok;
    report.rel_err = verdict.excess;
    report.tolerance = kAppendTolerance;
    report.why = verdict.why;
    return report;
  }

  ItemReport run(const std::string& name, const KvDequantize& op, const AttentionData& data) {
    const DequantizeOutput output =
        execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data);
    const DequantizeVerdict verdict = judge_dequantize(data, reference_dequantize(data), output);
    ItemReport report = report_of(name, verdict.comparison, op.dtype);
    report.why = verdict.why;
    if (!data.original_keys.empty() && !data.original_values.empty()) {
      report.rel_err_unquantized =
          judge_dequantize(data, reference_decode_unquantized(data), output).comparison.rel_err;
    }
    return report;
  }

  ItemReport run(const std::string& name, const AttentionMerge& op, const MergeData& data) {
    return report_of(name, reference_merge(data),
                     execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data),
                     op.dtype);
  }

  // The measures are those of what was quantized and came back, with one query of the same range.
  ItemReport run(const std::string& name, const ScalarMatrix& op, const ScalarData& data) {
    const ScalarResult output =
        execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data);
    const ScalarVerdict verdict = judge_scalar(data, reference_scalar(data), output);
    ItemReport report;
    report.name = name;
    report.ok = verdict.ok;
    report.rel_err = static_cast<double>(verdict.wrong) / op.elements();
    report.why = verdict.why;
    report.scalar_errors = round_trip_errors(data, output);
    report.clamped = clamped_elements(data, output);
    return report;
  }

  ItemReport run(const std::string& name, const Linear& op, const LinearData& data) {
    const std::vector<std::uint16_t> output =
        execute(backend_, *kernel_, prepared_.source, op, prepared_.plan, data);
    ItemReport report =
        report_of(name, compare(reference_linear(data), output, op.dtype), op.dtype);
    if (!data.original_weights.empty()) {
      const std::vector<double> plain = reference_linear_unquantized(data);
      report.rel_err_unquantized = compare(plain, output, op.dtype).rel_err;
    }
    return report;
  }

 private:
  const Prepared& prepared_;
  Backend& backend_;
  std::unique_ptr<LoadedKernel> kernel_;
};

}  // namespace

std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend, const NamedBundle* bundle,
                                     const HardInput& input) {
  return std::visit(
      [&](const auto& op) {
        std::vector<ItemReport> reports;
        Runner runner(prepared, backend);
        if (bundle == nullptr) {
          reports.push_back(runner.run("generated", op, hard_data(op, input)));
          return reports;
        }
        for (const BundleItem& item : bundle->bundle.items) {
          reports.push_back(
              runner.run(item.name, op, stored_data(op, item, bundle->where(item), input)));
        }
        return reports;
      },
      config.problem);
}

}  // namespace vqgen

#include "runtime/run.h"

#include <fmt/format.h>

#include "runtime/execute.h"
#include "runtime/fit_data.h"
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

class Runner {
 public:
  Runner(const Prepared& prepared, Backend& backend)
      : prepared_(prepared),
        backend_(backend),
        kernel_(backend.load(prepared.artifact, prepared.source)) {}

  ItemReport run(const std::string& name, const AttentionDecode& op, const AttentionData& data) {
    const AttentionOutput output = execute(backend_, *kernel_, prepared_.source, op,
                                           prepared_.plan, data);
    const double scale = static_cast<double>(softmax_scale(op));
    const AttentionResult reference = reference_attention(data, scale);
    ItemReport report = report_of(name, compare(reference.out, output.out, op.dtype), op.dtype);
    const Comparison lse = compare_lse(reference.lse, output.lse, op.dtype);
    if (!lse.ok) {
      report.ok = false;
      report.why += fmt::format("{}log-sum-exp {} is off by {:.2e}", report.why.empty() ? "" : "; ",
                                lse.worst, lse.max_abs_err);
    }
    report.lse_max_abs_err = lse.max_abs_err;
    if (!data.original_keys.empty() && !data.original_values.empty()) {
      const AttentionResult plain = reference_attention_unquantized(data, scale);
      report.rel_err_unquantized = compare(plain.out, output.out, op.dtype).rel_err;
    }
    return report;
  }

  ItemReport run(const std::string& name, const KvAppend& op, const AppendData& data) {
    const AppendVerdict verdict =
        judge_append(data, execute(backend_, *kernel_, prepared_.source, op,
                                   prepared_.plan, data));
    ItemReport report;
    report.name = name;
    report.ok = verdict.ok;
    report.rel_err = verdict.excess;
    report.tolerance = kAppendTolerance;
    report.why = verdict.why;
    return report;
  }

  ItemReport run(const std::string& name, const Linear& op, const LinearData& data) {
    const std::vector<std::uint16_t> output = execute(backend_, *kernel_, prepared_.source, op,
                                                      prepared_.plan, data);
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

AttentionData hard_data(const AttentionDecode& op, const HardInput& input) {
  return make_attention_data(op, input);
}
AppendData hard_data(const KvAppend& op, const HardInput& input) {
  return make_append_data(op, input);
}
LinearData hard_data(const Linear& op, const HardInput& input) {
  return make_linear_data(op, input);
}

AttentionData stored_data(const AttentionDecode& op, const BundleItem& item,
                          const std::string& where, const HardInput&) {
  return fit_data(op, item, where);
}
AppendData stored_data(const KvAppend&, const BundleItem&, const std::string& where,
                       const HardInput&) {
  throw Error(ErrorKind::bad_input,
              where +
                  ": kv_append makes codes of new tokens, so a bundle has nothing for it; run "
                  "it on generated data, without --data");
}
LinearData stored_data(const Linear& op, const BundleItem& item, const std::string& where,
                       const HardInput& input) {
  return fit_data(op, item, where, input.seed);
}

}  // namespace

std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend,
                                     const std::optional<std::string>& bundle_path,
                                     const HardInput& input) {
  return std::visit(
      [&](const auto& op) {
        std::vector<ItemReport> reports;
        if (!bundle_path) {
          Runner runner(prepared, backend);
          reports.push_back(runner.run("generated", op, hard_data(op, input)));
          return reports;
        }
        const Bundle bundle = read_bundle(*bundle_path);
        Runner runner(prepared, backend);
        for (const BundleItem& item : bundle.items) {
          const std::string where = *bundle_path + ": item '" + item.name + "'";
          reports.push_back(runner.run(item.name, op, stored_data(op, item, where, input)));
        }
        return reports;
      },
      config.problem);
}

}  // namespace vqgen

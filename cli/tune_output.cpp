#include "cli/tune_output.h"

#include <algorithm>

#include "cli/tune_figures.h"
#include "core/plan/plan_name.h"

namespace vqgen::cli {
namespace {

std::string us_text(const std::optional<double>& us) {
  return us ? fmt::format("{:.2f}", *us) : "-";
}

}  // namespace

void show_progress(const Output& output, const std::string& name, const TuneProgress& progress) {
  const auto asked = static_cast<double>(progress.timed + progress.failed);
  const auto planned = static_cast<double>(std::max<std::size_t>(progress.planned, 1));
  const double fraction =
      std::min(1.0, std::max(progress.spent_s / progress.budget_s, asked / planned));
  const double by_budget = progress.budget_s - progress.spent_s;
  const double by_count = asked > 0 ? progress.spent_s / asked * (planned - asked) : by_budget;
  const double gain = progress.best_us > 0 ? progress.default_us / progress.best_us : 0;
  output.show(
      fraction,
      fmt::format("{}: {} timed, {} failed, best {:.2f} us, {:.2f} times the default, {:.0f} s "
                  "left",
                  name, progress.timed, progress.failed, progress.best_us, gain,
                  std::max(0.0, std::min(by_budget, by_count))));
}

void print_tuning(const std::string& name, const TuneResult& result, const Output& output) {
  const TunedRow& row = result.row;
  output.line("{}: {} of {} candidates timed, of {} plans, in {:.1f} s{}", name, row.candidates,
              result.trials.size(), result.space, result.spent_s,
              result.exhausted ? "" : " (the budget's or the count's end)");
  output.line("{:>10} {:>8} {:>10}  {}", "us", "default/", "expected", "plan");
  for (const Trial* each : finalists_of(result)) {
    if (each->final_us <= 0) continue;
    const Plan& plan = each->measurement.plan;
    output.line("{:>10.2f} {:>8.3f} {:>10}  {}{}{}", each->final_us,
                row.default_us / each->final_us, us_text(each->expected_us), plan_name(plan),
                plan == row.plan ? "  <- winner" : "",
                plan == row.default_plan ? "  <- default" : "");
  }
  output.line(
      "{:.2f} us, {:.2f} to {:.2f}; {:.3f} times as fast as the default; differences below "
      "{:.1f} % are none",
      row.time_us, row.low_us, row.high_us, row.default_us / row.time_us, row.noise * 100);
}

}  // namespace vqgen::cli

#include "runtime/tuning/worker/measurer_workbench.h"

#include "core/plan/plan_name.h"
#include "runtime/code_distribution.h"
#include "runtime/parallel.h"

namespace vqgen {
namespace {

MeasureOptions screen_options(const WorkerSetup& setup) {
  MeasureOptions options;
  options.compilers = setup.compilers;
  options.replays = kScreenReplays;
  options.codebooks = setup.codebooks;
  options.input = hard_input(read_codes(setup.codes), setup.seed, setup.problem);
  return setup.backend == "host" ? on_host(std::move(options)) : options;
}

// As Measurer::compile() would give it once more.
CompiledPlan compiled_again(const CompiledPlan& candidate) {
  CompiledPlan again;
  again.measurement = candidate.measurement;
  again.measurement.time_us = again.measurement.low_us = again.measurement.high_us = 0;
  again.source = candidate.source;
  again.artifact = candidate.artifact;
  return again;
}

}  // namespace

MeasurerWorkbench::MeasurerWorkbench(Backend& backend, const WorkerSetup& setup)
    : measurer_(backend, setup.gpu, setup.problem, screen_options(setup)),
      keeps_(setup.backend == "host") {}

void MeasurerWorkbench::compile(std::span<const Plan> plans, bool serial,
                                const CompileWatch& watch) {
  candidates_.clear();
  candidates_.resize(plans.size());
  in_parallel(plans.size(), serial ? 1 : measurer_.compilers(), [&](std::size_t i) {
    watch.begun(i);
    const auto kept = kept_.find(plan_name(plans[i]));
    if (kept != kept_.end()) {
      candidates_[i] = compiled_again(kept->second);
    } else {
      candidates_[i] = measurer_.compile(plans[i]);
    }
    watch.ended(i);
  });
}

Measurement MeasurerWorkbench::screen(std::size_t candidate) {
  CompiledPlan& each = candidates_.at(candidate);
  if (seat(candidate).outcome == Outcome::timed) measurer_.time(each);
  each.kernel.reset();
  if (keeps_ && each.measurement.outcome == Outcome::timed) {
    kept_.insert_or_assign(plan_name(each.measurement.plan), compiled_again(each));
  }
  each.artifact.reset();
  return each.measurement;
}

Measurement MeasurerWorkbench::seat(std::size_t candidate) {
  CompiledPlan& each = candidates_.at(candidate);
  if (each.artifact) measurer_.verify(each);
  return each.measurement;
}

double MeasurerWorkbench::round_us(std::size_t candidate) {
  const std::vector<double> times = measurer_.time_us(candidates_.at(candidate));
  return times[times.size() / 2];
}

}  // namespace vqgen

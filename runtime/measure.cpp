#include "runtime/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/parallel.h"
#include "core/plan/main_kernel.h"
#include "generator/generate.h"
#include "heuristics/check.h"
#include "heuristics/explain.h"
#include "runtime/execute.h"
#include "runtime/quartiles.h"

namespace vqgen {
namespace {

// Guard bytes before and after each array: some rows of a tile, so that an index off by one hits
// them.
constexpr std::size_t kGuardBytes = 4096;

}  // namespace

MeasureOptions on_host(MeasureOptions options) {
  options.replays = 1;
  options.rotate = false;
  return options;
}

Measurer::Measurer(Backend& backend, const GpuSpec& gpu, const Problem& problem,
                   MeasureOptions options)
    : backend_(backend), gpu_(gpu), problem_(problem), options_(std::move(options)) {
  if (options_.compilers == 0) {
    options_.compilers = std::max(1u, std::thread::hardware_concurrency());
  }
  std::visit(
      [&]<class Op>(const Op& op) {
        using Traits = OpTraits<Op>;
        const auto data =
            std::make_shared<const typename Traits::Data>(hard_data(op, options_.input));
        layer_ = Traits::layer_bytes(*data);
        upload_ = [this, op, data] {
          return std::make_unique<DeviceCall>(backend_, op, *data, Misalignment{}, rotation_,
                                              kGuardBytes);
        };
        judge_ = [this, op, data, reference = Traits::reference(op, *data)] {
          return Traits::judge(op, *data, reference, call_->output(op, *data));
        };
      },
      problem_);
  if (options_.rotate) rotation_ = rotation_of(layer_, gpu_.l2_bytes);
  call_ = upload_();
}

void Measurer::move_data() {
  constexpr std::size_t kApart = std::size_t{3} << 20;  // more than a page of the driver's
  try {
    // The gap stays allocated where the previous data was, so that new data gets other addresses.
    gaps_.emplace_back(backend_, kApart);
    call_ = upload_();  // while the old one holds its own
  } catch (const Error&) {
    call_.reset();  // the device has no room for both
    call_ = upload_();
  }
}

std::vector<Measurement> Measurer::measure(const std::vector<Plan>& plans) {
  std::vector<CompiledPlan> candidates(plans.size());
  in_parallel(plans.size(), compilers(), [&](std::size_t i) { candidates[i] = compile(plans[i]); });
  std::vector<Measurement> results;
  for (CompiledPlan& candidate : candidates) {
    if (candidate.artifact) {
      verify(candidate);
      if (candidate.measurement.outcome == Outcome::timed) time(candidate);
    }
    results.push_back(std::move(candidate.measurement));
    candidate = {};
    if (options_.progress) options_.progress(results.size(), plans.size());
  }
  return results;
}

CompiledPlan Measurer::compile(const Plan& plan) const {
  CompiledPlan candidate;
  Measurement& result = candidate.measurement;
  result.plan = plan;
  const Verdict verdict = check(plan, problem_, gpu_);
  if (!verdict.ok) {
    result.outcome = Outcome::infeasible;
    result.why = verdict.reason;
    return candidate;
  }
  try {
    candidate.source =
        generate(problem_, plan, gpu_, backend_.machine(), explain(plan, problem_, gpu_));
    candidate.artifact = backend_.compile(candidate.source);
  } catch (const Error& error) {
    result.outcome = Outcome::compile_failed;
    result.why = error.what();
    return candidate;
  }
  const std::size_t main = main_kernel(plan, problem_);
  result.registers = candidate.artifact->kernels.at(main).registers;
  for (const KernelResources& each : candidate.artifact->kernels) {
    result.spill_bytes += each.spill_bytes;
  }
  result.shared_bytes = candidate.source.entries.at(main).shared_bytes;
  return candidate;
}

void Measurer::verify(CompiledPlan& candidate) {
  const KernelSource& source = candidate.source;
  Measurement& result = candidate.measurement;
  candidate.kernel = backend_.load(*candidate.artifact, source);
  result.blocks_per_sm =
      backend_.resident_blocks(*candidate.kernel, source, main_kernel(result.plan, problem_))
          .value_or(0);
  launch_all(backend_, *candidate.kernel, source, call_->args(result.plan).front());
  const ItemReport report = judge_();
  const std::optional<std::string> damage = call_->take_damage();
  result.rel_err = report.rel_err;
  if (report.ok && !damage) return;
  result.outcome = Outcome::wrong;
  result.why = damage ? fmt::format("wrote outside of its outputs: {}", *damage)
                      : fmt::format("rel_err {:.2e}", report.rel_err);
}

std::vector<Launch> Measurer::launches(const CompiledPlan& candidate, CodebookCaching codebooks) {
  const KernelSource& source = candidate.source;
  const auto& args = call_->args(candidate.measurement.plan, codebooks);
  std::vector<Launch> all;
  for (int call = 0; call < rotation_.calls; ++call) {
    for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
      all.push_back({candidate.kernel.get(), &source, entry,
                     args[static_cast<std::size_t>(call) % args.size()]});
    }
  }
  return all;
}

std::vector<double> Measurer::time_us(CompiledPlan& candidate,
                                      std::optional<CodebookCaching> codebooks) {
  std::vector<double> times =
      backend_.time_us(launches(candidate, codebooks.value_or(options_.codebooks)),
                       options_.replays, options_.warm_up_ms);
  for (double& each : times) each /= rotation_.calls;
  std::sort(times.begin(), times.end());
  return times;
}

double Measurer::eager_us(CompiledPlan& candidate, CodebookCaching codebooks) {
  const std::vector<Launch> all = launches(candidate, codebooks);
  std::vector<double> times;
  backend_.make_current();
  for (int replay = 0; replay <= options_.replays; ++replay) {
    const auto begin = std::chrono::steady_clock::now();
    for (const Launch& each : all) each.kernel->enqueue(each.entry, each.args, nullptr);
    backend_.wait_for(nullptr);
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    if (replay > 0) times.push_back(spent.count() / rotation_.calls);
  }
  return quartiles(std::move(times)).median;
}

void Measurer::time(CompiledPlan& candidate) {
  const Quartiles times = quartiles(time_us(candidate));
  candidate.measurement.time_us = times.median;
  candidate.measurement.low_us = times.low;
  candidate.measurement.high_us = times.high;
}

}  // namespace vqgen

#include "runtime/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "core/check.h"
#include "generator/generate.h"
#include "heuristics/explain.h"
#include "runtime/execute.h"
#include "runtime/parallel.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/reference_linear.h"

namespace vqgen {
namespace {

struct Compiled {
  KernelSource source;
  std::optional<Artifact> artifact;
};

double quantile(const std::vector<double>& sorted, double at) {
  const double place = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

}  // namespace

Measurer::Measurer(Backend& backend, const GpuSpec& gpu, const Problem& problem,
                   MeasureOptions options)
    : backend_(backend), gpu_(gpu), problem_(problem), options_(std::move(options)) {
  if (options_.compilers == 0) {
    options_.compilers = std::max(1u, std::thread::hardware_concurrency());
  }
  std::visit([&](const auto& op) { prepare(op); }, problem_);
}

void Measurer::prepare(const AttentionDecode& op) {
  data_ = make_attention_data(op, options_.input);
  const auto& data = std::get<AttentionData>(data_);
  reference_ = reference_attention(data, static_cast<double>(softmax_scale(op)));
  upload(op, data, data.keys.codes.size() + data.values.codes.size());
}

void Measurer::prepare(const Linear& op) {
  data_ = make_linear_data(op, options_.input);
  const auto& data = std::get<LinearData>(data_);
  reference_ = reference_linear(data);
  upload(op, data, data.weights.codes.size());
}

template <class Op, class Data>
void Measurer::upload(const Op& op, const Data& data, std::size_t code_words) {
  code_bytes_ = static_cast<std::int64_t>(code_words) * 4;
  copies_ = static_cast<int>(std::clamp<std::int64_t>(3 * gpu_.l2_bytes / code_bytes_ + 1, 1, 256));
  call_ = std::make_unique<DeviceCall>(backend_, op, data, Misalignment{}, copies_);
}

std::vector<Measurement> Measurer::measure(const std::vector<Plan>& plans) {
  std::vector<Measurement> results(plans.size());
  std::vector<Compiled> compiled(plans.size());
  in_parallel(plans.size(), static_cast<int>(options_.compilers), [&](std::size_t i) {
    Measurement& result = results[i];
    result.plan = plans[i];
    const Verdict verdict = check(plans[i], problem_, gpu_);
    if (!verdict.ok) {
      result.outcome = Outcome::infeasible;
      result.why = verdict.reason;
      return;
    }
    try {
      compiled[i].source =
          generate(problem_, plans[i], gpu_, backend_.machine(), explain(plans[i], problem_, gpu_));
      compiled[i].artifact = backend_.compile(compiled[i].source);
    } catch (const Error& error) {
      result.outcome = Outcome::compile_failed;
      result.why = error.what();
    }
  });
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Measurement& result = results[i];
    if (compiled[i].artifact) {
      const KernelSource& source = compiled[i].source;
      result.registers = compiled[i].artifact->kernels.front().registers;
      for (const KernelResources& each : compiled[i].artifact->kernels) {
        result.spill_bytes += each.spill_bytes;
      }
      result.shared_bytes = source.entries.front().shared_bytes;
      const auto kernel = backend_.load(*compiled[i].artifact, source);
      result.blocks_per_sm = backend_.resident_blocks(*kernel, source, 0).value_or(0);
      verify(*kernel, source, result);
      if (result.outcome == Outcome::timed) time(*kernel, source, result);
    }
    if (options_.progress) options_.progress(i + 1, plans.size());
  }
  return results;
}

void Measurer::verify(LoadedKernel& kernel, const KernelSource& source, Measurement& result) {
  launch_all(backend_, kernel, source, call_->args(result.plan).front());
  Comparison comparison;
  if (const auto* op = std::get_if<AttentionDecode>(&problem_)) {
    const AttentionOutput output = call_->attention_output();
    const auto& reference = std::get<AttentionResult>(reference_);
    comparison = compare(reference.out, output.out, op->dtype);
    comparison.ok = comparison.ok && compare_lse(reference.lse, output.lse, op->dtype).ok;
  } else {
    comparison = compare(std::get<std::vector<double>>(reference_), call_->linear_output(),
                         as_linear(problem_)->dtype);
  }
  result.rel_err = comparison.rel_err;
  if (comparison.ok) return;
  result.outcome = Outcome::wrong;
  result.why = fmt::format("rel_err {:.2e}", comparison.rel_err);
}

void Measurer::time(LoadedKernel& kernel, const KernelSource& source, Measurement& result) {
  constexpr int kLeastCalls = 16;  // a graph of one short call would time its launch
  const int calls = std::max(copies_, kLeastCalls);
  const auto& args = call_->args(result.plan);
  std::vector<Launch> launches;
  for (int call = 0; call < calls; ++call) {
    for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
      launches.push_back({&kernel, &source, entry, args[static_cast<std::size_t>(call % copies_)]});
    }
  }
  std::vector<double> times = backend_.time_us(launches, options_.replays);
  for (double& each : times) each /= calls;
  std::sort(times.begin(), times.end());
  result.time_us = quantile(times, 0.5);
  result.low_us = quantile(times, 0.25);
  result.high_us = quantile(times, 0.75);
}

}  // namespace vqgen

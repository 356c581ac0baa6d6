#include "runtime/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "core/parallel.h"
#include "core/plan/main_kernel.h"
#include "generator/generate.h"
#include "heuristics/check.h"
#include "heuristics/explain.h"
#include "runtime/execute.h"
#include "runtime/quartiles.h"
#include "runtime/verify/reference_linear.h"

namespace vqgen {
namespace {

// Before and after each array: some rows of a tile, which an index off by one would write to.
constexpr std::size_t kGuardBytes = 4096;

template <class... Arrays>
std::int64_t bytes_of(const Arrays&... arrays) {
  return (static_cast<std::int64_t>(std::as_bytes(std::span(arrays)).size()) + ...);
}

std::int64_t codebook_bytes_of(const QuantizedTensor& tensor) {
  return bytes_of(tensor.codebooks, tensor.stage_scales, tensor.output_scales, tensor.smooth);
}

// A call reads the rows of the sequences' lengths.
LayerBytes layer_of(const AttentionData& data) {
  const std::int64_t stored = bytes_of(data.keys.codes, data.values.codes);
  const std::int64_t tokens =
      std::accumulate(data.lengths.begin(), data.lengths.end(), std::int64_t{0});
  const double share = static_cast<double>(tokens) / static_cast<double>(data.batch) /
                       static_cast<double>(data.keys.rows);
  return {std::llround(static_cast<double>(stored) * std::min(share, 1.0)),
          stored + bytes_of(data.raw_keys, data.raw_values),
          codebook_bytes_of(data.keys) + codebook_bytes_of(data.values)};
}

// Of experts that have rows, a call reads theirs.
LayerBytes layer_of(const LinearData& data) {
  const std::int64_t codes = bytes_of(data.weights.codes);
  const std::int64_t experts = data.weights.heads;
  const std::int64_t touched = data.expert_rows.empty() ? 1 : std::ssize(experts_with_rows(data));
  return {codes / experts * touched, codes, codebook_bytes_of(data.weights) / experts * touched,
          static_cast<int>(experts / touched)};
}

// A call writes few rows of the codes: its new tokens', or those of the batches that they fill.
LayerBytes layer_of(const AppendData& data) {
  std::int64_t rows = 0;
  for (const std::int64_t position : data.positions) {
    const std::int64_t end = position + data.new_tokens;
    rows +=
        data.keys.heads * (end - end % data.flush_block - position + position % data.flush_block);
  }
  return {rows * (data.keys.row_words + data.values.row_words) * 4,
          bytes_of(data.keys.codes, data.values.codes, data.raw_keys, data.raw_values),
          codebook_bytes_of(data.keys) + codebook_bytes_of(data.values)};
}

// The parts stand for codes.
LayerBytes layer_of(const MergeData& data) {
  std::int64_t parts = 0;
  for (const MergePart& each : data.parts) parts += bytes_of(each.out, each.lse);
  return {parts, parts, 0};
}

// What is read; calls write to one place, which is as large as a part of it.
LayerBytes layer_of(const ScalarData& data) {
  const std::int64_t read = bytes_of(data.decodes ? data.codes : data.elements);
  return {read, read, 0};
}

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
  std::visit([&](const auto& op) { data_ = hard_data(op, options_.input); }, problem_);
  if (const auto* op = std::get_if<AttentionDecode>(&problem_)) {
    reference_ = reference_attention(std::get<AttentionData>(data_),
                                     static_cast<double>(softmax_scale(*op)));
  } else if (std::holds_alternative<KvDequantize>(problem_)) {
    reference_ = reference_dequantize(std::get<AttentionData>(data_));
  } else if (const auto* merge = std::get_if<MergeData>(&data_)) {
    reference_ = reference_merge(*merge);
  } else if (const auto* matrix = std::get_if<ScalarData>(&data_)) {
    reference_ = reference_scalar(*matrix);
  } else if (const auto* product = std::get_if<LinearData>(&data_)) {
    reference_ = reference_linear(*product);
  }
  layer_ = std::visit([](const auto& data) { return layer_of(data); }, data_);
  if (options_.rotate) rotation_ = rotation_of(layer_, gpu_.l2_bytes);
  call_ = uploaded();
}

std::unique_ptr<DeviceCall> Measurer::uploaded() const {
  if (const auto* op = std::get_if<AttentionDecode>(&problem_)) {
    return std::make_unique<DeviceCall>(backend_, *op, std::get<AttentionData>(data_),
                                        Misalignment{}, rotation_, kGuardBytes);
  }
  if (const auto* op = std::get_if<KvAppend>(&problem_)) {
    return std::make_unique<DeviceCall>(backend_, *op, std::get<AppendData>(data_), Misalignment{},
                                        rotation_, kGuardBytes);
  }
  if (const auto* op = std::get_if<KvDequantize>(&problem_)) {
    return std::make_unique<DeviceCall>(backend_, *op, std::get<AttentionData>(data_),
                                        Misalignment{}, rotation_, kGuardBytes);
  }
  if (const auto* op = std::get_if<AttentionMerge>(&problem_)) {
    return std::make_unique<DeviceCall>(backend_, *op, std::get<MergeData>(data_), Misalignment{},
                                        rotation_, kGuardBytes);
  }
  if (const ScalarMatrix* op = as_scalar(problem_)) {
    return std::make_unique<DeviceCall>(backend_, *op, std::get<ScalarData>(data_), Misalignment{},
                                        rotation_, kGuardBytes);
  }
  return std::make_unique<DeviceCall>(backend_, *as_linear(problem_), std::get<LinearData>(data_),
                                      Misalignment{}, rotation_, kGuardBytes);
}

void Measurer::move_data() {
  constexpr std::size_t kApart = std::size_t{3} << 20;  // more than a page of the driver's
  try {
    // Kept, in the place that the data before these left, so that it fits other data no more.
    gaps_.emplace_back(backend_, kApart);
    call_ = uploaded();  // while the old one holds its own
  } catch (const Error&) {
    call_.reset();  // the device has no room for both
    call_ = uploaded();
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

Comparison Measurer::compare_output() const {
  if (const auto* attention = std::get_if<AttentionResult>(&reference_)) {
    const auto* op = std::get_if<AttentionDecode>(&problem_);
    const DType dtype = op != nullptr ? op->dtype : std::get<AttentionMerge>(problem_).dtype;
    const AttentionOutput output = call_->attention_output();
    Comparison comparison = compare(attention->out, output.out, dtype);
    comparison.ok = comparison.ok && compare_lse(attention->lse, output.lse, dtype).ok;
    return comparison;
  }
  if (const auto* append = std::get_if<AppendData>(&data_)) {
    const AppendVerdict verdict = judge_append(*append, call_->append_output());
    Comparison comparison;
    comparison.rel_err = verdict.excess;
    comparison.ok = verdict.ok;
    return comparison;
  }
  if (const auto* decoded = std::get_if<DequantizeResult>(&reference_)) {
    return judge_dequantize(std::get<AttentionData>(data_), *decoded, call_->dequantize_output())
        .comparison;
  }
  if (const auto* made = std::get_if<ScalarResult>(&reference_)) {
    const auto& data = std::get<ScalarData>(data_);
    const ScalarVerdict verdict = judge_scalar(data, *made, call_->scalar_output(data));
    Comparison comparison;
    comparison.rel_err = verdict.ok ? 0 : 1;
    comparison.ok = verdict.ok;
    return comparison;
  }
  return compare(std::get<std::vector<double>>(reference_), call_->linear_output(),
                 as_linear(problem_)->dtype);
}

void Measurer::verify(CompiledPlan& candidate) {
  const KernelSource& source = candidate.source;
  Measurement& result = candidate.measurement;
  candidate.kernel = backend_.load(*candidate.artifact, source);
  result.blocks_per_sm =
      backend_.resident_blocks(*candidate.kernel, source, main_kernel(result.plan, problem_))
          .value_or(0);
  launch_all(backend_, *candidate.kernel, source, call_->args(result.plan).front());
  const Comparison comparison = compare_output();
  const std::optional<std::string> damage = call_->take_damage();
  result.rel_err = comparison.rel_err;
  if (comparison.ok && !damage) return;
  result.outcome = Outcome::wrong;
  result.why = damage ? fmt::format("wrote outside of its outputs: {}", *damage)
                      : fmt::format("rel_err {:.2e}", comparison.rel_err);
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

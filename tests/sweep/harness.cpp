#include "tests/sweep/harness.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "core/config.h"
#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/cache/artifact_cache.h"
#include "runtime/verify/reference_attention.h"
#include "runtime/verify/reference_linear.h"

namespace vqgen::test {
namespace {

// Set VQGEN_TEST_CACHE to a folder to keep compiled kernels between runs.
ArtifactCache* test_cache() {
  static const char* folder = std::getenv("VQGEN_TEST_CACHE");
  static ArtifactCache cache(folder != nullptr ? folder : "");
  return folder != nullptr ? &cache : nullptr;
}

std::string_view wanted_backend() {
  const char* wanted = std::getenv("VQGEN_TEST_BACKEND");
  const std::string_view name = wanted != nullptr ? wanted : "host";
  if (name != "host" && name != "race" && name != "cuda") {
    throw Error(ErrorKind::bad_input, "VQGEN_TEST_BACKEND must be host, race or cuda");
  }
  return name;
}

std::string describe(const Comparison& comparison, const char* what) {
  if (comparison.ok) return "";
  return fmt::format("{}: rel_err {:.3e}, local {:.3e} at {}, {} not finite; ", what,
                     comparison.rel_err, comparison.max_local_err, comparison.worst,
                     comparison.nonfinite_mismatches);
}

std::string judge(const AttentionDecode& op, const SweepCase& sweep_case, Kernel& kernel) {
  const AttentionData data = make_attention_data(op, sweep_case.input);
  const AttentionOutput output = kernel.run(data, sweep_case.misalignment);
  const AttentionResult reference =
      reference_attention(data, static_cast<double>(softmax_scale(op)));
  return describe(compare(reference.out, output.out, op.dtype), "out") +
         describe(compare_lse(reference.lse, output.lse, op.dtype), "lse");
}

std::string judge(const KvAppend& op, const SweepCase& sweep_case, Kernel& kernel) {
  const AppendData data = make_append_data(op, sweep_case.input);
  return judge_append(data, kernel.run(data, sweep_case.misalignment)).why;
}

std::string judge(const Linear& op, const SweepCase& sweep_case, Kernel& kernel) {
  const LinearData data = make_linear_data(op, sweep_case.input);
  const std::vector<double> reference = reference_linear(data);
  const std::vector<std::uint16_t> y = kernel.run(data, sweep_case.misalignment);
  Comparison comparison = compare(reference, y, op.dtype);
  if (!comparison.ok) {
    comparison = compare(reference, y, op.dtype, linear_cancellation(data, reference));
  }
  return describe(comparison, "y");
}

}  // namespace

Backend* sweep_backend(std::size_t number) {
  static const std::string_view wanted = wanted_backend();
  if (wanted == "cuda") {
    static const char* nvrtc = std::getenv("VQGEN_NVRTC");
    static const std::unique_ptr<Backend> backend =
        make_cuda_backend({.nvrtc_path = nvrtc != nullptr ? nvrtc : ""});
    return backend->device() ? backend.get() : nullptr;
  }
  static const bool races = wanted == "race";
  static const std::array backends{
      make_host_backend({.order = LaneOrder::forward, .check_races = races}),
      make_host_backend({.order = LaneOrder::reverse, .check_races = races}),
      make_host_backend({.order = LaneOrder::random, .seed = 1, .check_races = races}),
  };
  return backends[number % backends.size()].get();
}

GpuSpec sweep_gpu() {
  const Backend* backend = sweep_backend();
  return backend->machine() == Machine::cuda ? *backend->device() : find_gpu("h200");
}

Kernel::Kernel(Backend& backend, const Problem& problem, const Plan& plan, const GpuSpec& gpu)
    : backend_(backend),
      problem_(problem),
      plan_(plan),
      source_(generate(problem, plan, gpu, backend.machine(), {})),
      loaded_(backend.load(compile_cached(backend, source_, test_cache()).artifact, source_)) {}

AttentionOutput Kernel::run(const AttentionData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<AttentionDecode>(problem_),
                 std::get<AttentionDecodePlan>(plan_), data, misalignment);
}

AppendResult Kernel::run(const AppendData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<KvAppend>(problem_),
                 std::get<KvAppendPlan>(plan_), data, misalignment);
}

std::vector<std::uint16_t> Kernel::run(const LinearData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, *as_linear(problem_), std::get<LinearPlan>(plan_),
                 data, misalignment);
}

std::string failure_of(const SweepCase& sweep_case, Backend& backend, const GpuSpec& gpu) {
  const auto context = [&] {
    return fmt::format("\n  case {}\n  seed {}\n  {}\n  plan {}", sweep_case.name,
                       sweep_case.input.seed, to_json(sweep_case.problem).dump(),
                       to_json(sweep_case.plan).dump());
  };
  try {
    Kernel kernel(backend, sweep_case.problem, sweep_case.plan, gpu);
    const std::string failure = std::visit(
        [&](const auto& op) { return judge(op, sweep_case, kernel); }, sweep_case.problem);
    return failure.empty() ? "" : failure + context();
  } catch (const Error& error) {
    return error.what() + context();
  }
}

}  // namespace vqgen::test

// Google Benchmark of the kernels of the plans that choose() takes for configs: verified first,
// then timed as replays of CUDA graphs with cold caches (runtime/measure.h). An iteration is one
// measurement, its manual time that of one call, its label the plan. On the host backend problems
// are cut to a CPU's size.
//
//   kernels_bench [--backend=host] [--benchmark_...] [CONFIG.json...]
//
// Without a config: the examples of examples/configs. Exit code 1 if a plan is wrong.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>

#include "core/plan/plan_name.h"
#include "core/profiles.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/measure.h"
#include "runtime/prepare.h"
#include "runtime/quartiles.h"

namespace {

using namespace vqgen;

constexpr int kIterations = 5;
int failures = 0;

void fail(benchmark::State& state, const std::string& why) {
  ++failures;
  state.SkipWithError(why.c_str());
}

// The problem with fewer sequences, tokens, outputs and columns.
Problem host_sized(const Problem& problem) {
  const auto cut = [](auto& size, int most) {
    size = std::min(size, static_cast<std::remove_reference_t<decltype(size)>>(most));
  };
  Problem small = problem;
  std::visit(
      [&]<class Op>(Op& op) {
        if constexpr (std::is_base_of_v<Linear, Op>) {
          cut(op.shape.out_features, 256);
          cut(op.shape.in_features, 1024);
        } else if constexpr (requires { op.shape.rows; }) {
          cut(op.shape.rows, 512);
        } else if constexpr (std::is_base_of_v<ScalarMatrix, Op>) {
          cut(op.shape.tokens, 512);
        } else {
          cut(op.shape.batch, 2);
          cut(op.shape.tokens, 512);
        }
      },
      small);
  return small;
}

void run(benchmark::State& state, Backend& backend, const Config& config) {
  try {
    const GpuSpec gpu = backend.device().value_or(find_gpu("h200"));
    const Plan plan = plan_for(config, gpu);
    const bool host = backend.machine() == Machine::host;
    Measurer measurer(backend, gpu, config.problem, host ? on_host({}) : MeasureOptions{});
    CompiledPlan candidate = measurer.compile(plan);
    if (candidate.artifact) measurer.verify(candidate);
    const Measurement& measured = candidate.measurement;
    if (measured.outcome != Outcome::timed) return fail(state, measured.why);
    for ([[maybe_unused]] auto each : state) {
      state.SetIterationTime(quartiles(measurer.time_us(candidate)).median * 1e-6);
    }
    state.SetBytesProcessed(state.iterations() * measurer.code_bytes());
    state.SetLabel(plan_name(plan));
  } catch (const Error& error) {
    fail(state, error.what());
  }
}

// Examples of the checkout that it was built in. Throws Error(bad_input) if that is gone.
std::vector<std::filesystem::path> examples() {
  const std::filesystem::path folder = VQGEN_SOURCE_DIR "/examples/configs";
  std::vector<std::filesystem::path> paths;
  std::error_code code;
  for (const auto& each : std::filesystem::directory_iterator(folder, code)) {
    if (each.path().extension() == ".json") paths.push_back(each.path());
  }
  if (paths.empty()) {
    throw Error(ErrorKind::bad_input, folder.string() + " has no configs; name some");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

struct Arguments {
  bool host = false;
  std::vector<std::filesystem::path> configs;
};

// Arguments that Google Benchmark has left. Throws Error(bad_input).
Arguments read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--backend=host") {
      arguments.host = true;
    } else if (word.starts_with("-")) {
      throw Error(ErrorKind::bad_input, std::string(word) +
                                            ": unknown; usage: kernels_bench [--backend=host] "
                                            "[--benchmark_...] [CONFIG.json...]");
    } else {
      arguments.configs.emplace_back(word);
    }
  }
  if (arguments.configs.empty()) arguments.configs = examples();
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  try {
    const Arguments arguments = read_arguments(argc, argv);
    const std::unique_ptr<Backend> backend =
        arguments.host ? make_host_backend() : make_cuda_backend();
    for (const std::filesystem::path& path : arguments.configs) {
      Config config = read_config(path);
      if (arguments.host) config.problem = host_sized(config.problem);
      benchmark::RegisterBenchmark(
          path.stem().c_str(),
          [&, config](benchmark::State& state) { run(state, *backend, config); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(arguments.host ? 1 : kIterations);
    }
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::fprintf(stderr, "kernels_bench: %s\n", error.what());
    return error.exit_code();
  }
  return failures == 0 ? 0 : 1;
}

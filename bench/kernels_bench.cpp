// The kernels that vqgen takes for configs, timed under Google Benchmark: verified first, then as
// replays of CUDA graphs whose calls take turns on copies that no cache holds (runtime/measure.h).
// An iteration is one such measurement, its manual time that of one call; the label is the plan.
//
//   kernels_bench [--backend=host] [--benchmark_...] CONFIG.json...
#include <benchmark/benchmark.h>

#include <filesystem>
#include <memory>
#include <string_view>

#include "core/plan_name.h"
#include "core/profiles.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/measure.h"
#include "runtime/prepare.h"
#include "runtime/quartiles.h"
#include "runtime/tuned_places.h"

namespace {

using namespace vqgen;

constexpr int kIterations = 5;
int failures = 0;

void fail(benchmark::State& state, const std::string& why) {
  ++failures;
  state.SkipWithError(why.c_str());
}

void run(benchmark::State& state, Backend& backend, const Config& config,
         const TunedTables* tables) {
  try {
    const GpuSpec gpu = backend.device().value_or(find_gpu("h200"));
    const Plan plan = plan_with(config, gpu, hotness_of(config), {.tables = tables}).plan;
    Measurer measurer(backend, gpu, config.problem, {});
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

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const bool host = argc > 1 && std::string_view(argv[1]) == "--backend=host";
  const int first = host ? 2 : 1;
  if (first == argc) {
    std::fprintf(stderr,
                 "usage: kernels_bench [--backend=host] [--benchmark_...] CONFIG.json...\n");
    return 2;
  }
  try {
    const std::unique_ptr<Backend> backend = host ? make_host_backend() : make_cuda_backend();
    const auto tables = find_tables({}, Damage::fail);
    for (int i = first; i < argc; ++i) {
      const std::filesystem::path path = argv[i];
      benchmark::RegisterBenchmark(path.stem().c_str(),
                                   [&, config = read_config(path)](benchmark::State& state) {
                                     run(state, *backend, config, tables.get());
                                   })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(kIterations);
    }
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::fprintf(stderr, "kernels_bench: %s\n", error.what());
    return error.exit_code();
  }
  return failures == 0 ? 0 : 1;
}

#include "cli/tune_evaluator.h"

#include "core/files/digest.h"
#include "core/files/files.h"
#include "generator/generate.h"
#include "heuristics/choose.h"
#include "runtime/tuning/journal/replay.h"
#include "runtime/tuning/worker/worker.h"

namespace vqgen::cli {
namespace {

// Digest of all kernels' text, as far as it does not follow from the plan.
std::string code_digest(const KernelSource& source) {
  Digest digest;
  digest.add(VQGEN_VERSION).add(source.text);
  for (const EmbeddedFile& file : embedded_templates()) digest.add(file.path).add(file.text);
  return digest.hex();
}

// A CPU that others use too, and a problem that is a GPU's.
constexpr double kLongestOnHostS = 900;

// MeasurePolicy::l2 of a GPU.
const char* cold_of(CodebookCaching codebooks) {
  return codebooks == CodebookCaching::rotated ? kL2Cold : kL2CodesCold;
}

}  // namespace

TuneSource make_evaluator(const TimingOptions& timing, const std::string& replay,
                          const Problem& problem, const GpuSpec& gpu, Backend& backend) {
  TuneSource source;
  TuneOptions& tuning = source.tuning;
  const CodeDistribution codes = read_codes(timing.codes);
  tuning.policy.codes = codes.name;
  tuning.profiles = hard_input(codes, timing.seed, problem).captured;
  tuning.seed = tuning.policy.seed = timing.seed;
  tuning.environment.vqgen = VQGEN_VERSION;
  if (!replay.empty()) {
    source.evaluator = std::make_unique<ReplayEvaluator>(read_recording(replay, problem));
    tuning.environment.device = tuning.environment.driver = tuning.environment.compiler = "replay";
    source.code = sha256_hex(read_file(replay));
    tuning.policy.l2 = cold_of(recorded_codebooks(replay));
    return source;
  }
  const KernelSource usual = generate(problem, choose(problem, gpu), gpu, backend.machine(), {});
  source.code = code_digest(usual);
  tuning.environment.device = backend.device() ? backend.device()->name : "CPU";
  tuning.environment.driver = backend.driver();
  tuning.environment.compiler = backend.compiler(usual).name;
  const bool host = backend.machine() == Machine::host;
  const CodebookCaching codebooks = codebooks_of(timing);
  tuning.policy.timer = host ? "cpu" : "graph";
  tuning.policy.l2 = host ? kL2Warm : cold_of(codebooks);
  const std::string tool = std::filesystem::read_symlink("/proc/self/exe").string();
  WorkerOptions options{.command = {tool, "tune-worker"}};
  if (host) {
    tuning.long_calls = 1;
    options.compile_s = options.run_s = kLongestOnHostS;
  }
  source.evaluator =
      std::make_unique<WorkerEvaluator>(WorkerSetup{.problem = problem,
                                                    .gpu = gpu,
                                                    .backend = std::string(backend.name()),
                                                    .codes = timing.codes,
                                                    .seed = timing.seed,
                                                    .codebooks = codebooks},
                                        std::move(options));
  return source;
}

// vqgen tune-worker, the process in which vqgen tune runs candidates, so that one that hangs or
// faults ends this and not the tuning. Not for people, and not in --help.
void add_tune_worker(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand("tune-worker", "Serves vqgen tune");
  command->group("");
  command->callback([&output] {
    std::unique_ptr<Backend> backend;
    output.exit_code = serve_worker([&](const WorkerSetup& setup) {
      backend = make_backend({.backend = setup.backend});
      return std::make_unique<MeasurerWorkbench>(*backend, setup);
    });
  });
}

}  // namespace vqgen::cli

#include "cli/tune_evaluator.h"

#include "core/files/digest.h"
#include "core/files/files.h"
#include "generator/embedded_templates.h"
#include "generator/generate.h"
#include "heuristics/choose.h"
#include "runtime/tuning/journal/replay.h"
#include "runtime/tuning/worker/worker.h"

namespace vqgen::cli {
namespace {

// Of the text of all kernels, as far as it does not follow from the plan.
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
  const CodeDistribution codes = read_codes(timing.codes);
  source.policy.codes = codes.name;
  source.captured = hard_input(codes, timing.seed, problem).captured;
  source.policy.seed = timing.seed;
  source.environment.vqgen = VQGEN_VERSION;
  if (!replay.empty()) {
    source.evaluator = std::make_unique<ReplayEvaluator>(read_recording(replay, problem),
                                                         ReplayOptions{.seed = timing.seed});
    source.environment.device = source.environment.driver = source.environment.compiler = "replay";
    source.code = sha256_hex(read_file(replay));
    source.policy.l2 = cold_of(recorded_codebooks(replay));
    return source;
  }
  const KernelSource usual = generate(problem, choose(problem, gpu), gpu, backend.machine(), {});
  source.code = code_digest(usual);
  source.environment.device = backend.device() ? backend.device()->name : "CPU";
  source.environment.driver = backend.driver();
  source.environment.compiler = backend.compiler(usual).name;
  const bool host = backend.machine() == Machine::host;
  const CodebookCaching codebooks = codebooks_of(timing);
  source.policy.timer = host ? "cpu" : "graph";
  source.policy.l2 = host ? kL2Warm : cold_of(codebooks);
  const std::string tool = std::filesystem::read_symlink("/proc/self/exe").string();
  WorkerOptions options{.command = {tool, "tune-worker"}};
  if (host) {
    source.long_calls = 1;
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

}  // namespace vqgen::cli

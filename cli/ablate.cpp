// vqgen ablate: what each part of the codebook cache, the dataflows and the fusions gives for a
// config on a device. Each row is the best measured plan of the space with a restriction.
#include "runtime/ablate.h"

#include "cli/ablate_report.h"
#include "cli/progress.h"
#include "runtime/prepare.h"

namespace vqgen::cli {
namespace {

struct Options {
  std::vector<std::string> configs;
  std::size_t budget = 200;
  std::string hotness;
  std::string backend;
  std::string gpu;
  std::string codes = "uniform";
  std::uint64_t seed = 1;
  bool counters = false;
};

constexpr std::array kCountedRows{"GC*", "SC*", "best"};

Ablation searched(const Config& config, const Options& options, Backend& backend,
                  const GpuSpec& gpu, const AblationSpace& space) {
  Progress progress;
  std::size_t before = 0;  // plans of the batches that are done
  MeasureOptions measure;
  measure.input.seed = options.seed;
  measure.input.codes = options.codes == "zipf" ? CodePattern::zipf : CodePattern::uniform;
  measure.progress = [&](std::size_t done, std::size_t) {
    progress.show(static_cast<double>(before + done) / static_cast<double>(options.budget),
                  config.source);
  };
  Measurer measurer(backend, gpu, config.problem, measure);
  return ablate(space, options.budget, [&](const std::vector<Plan>& plans) {
    std::vector<Measurement> results = measurer.measure(plans);
    before += plans.size();
    return results;
  });
}

std::map<std::string, Counters> counted(const Config& config, const Options& options,
                                        const Backend& backend, const AblationSpace& space,
                                        const Ablation& ablation) {
  std::map<std::string, Counters> counters;
  const CounterOptions how{.tool = std::filesystem::read_symlink("/proc/self/exe"),
                           .gpu = options.gpu,
                           .seed = options.seed};
  for (const char* name : kCountedRows) {
    const Measurement* best = ablation.best(row_of(space, name));
    if (best == nullptr) {
      counters[name].why = "the row has no plan";
    } else if (backend.machine() != Machine::cuda) {
      counters[name].why = "the host backend has no counters; use --backend cuda";
    } else {
      counters[name] = count(config.problem, best->plan, how);
    }
  }
  return counters;
}

void ablate_config(const Config& config, const Options& options, Backend& backend,
                   const GpuSpec& gpu, Output& output) {
  const Verdict verdict = check(config.problem);
  if (!verdict.ok) throw Error(ErrorKind::infeasible, config.source + ": " + verdict.reason);
  const std::vector<HotnessProfile> profiles = hotness_of(config);
  const AblationSpace space(config.problem, gpu, profiles);
  const Ablation ablation = searched(config, options, backend, gpu, space);
  AblatedConfig result{config, gpu, profiles, space, ablation};
  if (options.counters) result.counters = counted(config, options, backend, space, ablation);
  report_config(result, output);
}

void run(const Options& options, Output& output) {
  const Environment environment = read_environment();
  const std::unique_ptr<Backend> backend =
      options.backend == "host" ? make_host(environment) : make_cuda(environment);
  std::vector<Config> configs;
  for (const std::string& path : options.configs) {
    configs.push_back(read_config(std::filesystem::path(path)));
    if (!options.hotness.empty()) configs.back().hotness = options.hotness;
    if (!configs.back().plan.empty()) {
      throw Error(ErrorKind::bad_input, path +
                                            ": /plan: an ablation makes all plans itself; "
                                            "leave the field out");
    }
  }
  const GpuChoice gpu =
      choose_gpu(options.gpu, configs.front(),
                 backend->machine() == Machine::cuda ? backend->device() : std::nullopt);
  output.document["gpu"] = gpu.spec.name;
  output.document["gpu_reason"] = gpu.reason;
  output.document["gpu_spec"] = to_json(gpu.spec);
  output.document["backend"] = backend->name();
  output.document["codes"] = options.codes;
  output.document["seed"] = options.seed;
  output.document["budget"] = options.budget;
  for (const Config& config : configs) ablate_config(config, options, *backend, gpu.spec, output);
  report_summary(output);
}

}  // namespace

void add_ablate(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "ablate",
      "Measure what placement, dataflow, fusion and copies each give: the best plan of each, "
      "verified and timed on a device");
  auto options = std::make_shared<Options>();
  command->add_option("config", options->configs, "config.json files without a plan of their own")
      ->required();
  command->add_option("--budget", options->budget, "Plans measured of each config, at most")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{100000}));
  command->add_option("--hotness", options->hotness,
                      "A profile of vqgen profile, by which boundaries are set; goes over the "
                      "config's");
  command
      ->add_option("--backend", options->backend, "cuda (default) or host, whose times are a CPU's")
      ->check(CLI::IsMember({"host", "cuda"}));
  command->add_option("--gpu", options->gpu, "The GPU to plan for: a name, a JSON file, or auto");
  command->add_option("--codes", options->codes, "How codes are drawn: uniform or zipf")
      ->capture_default_str()
      ->check(CLI::IsMember({"uniform", "zipf"}));
  command->add_option("--seed", options->seed, "Of the generated input")->capture_default_str();
  command->add_flag("--counters", options->counters,
                    "Run ncu on the best plans of GC*, SC* and all, and add what it counts");
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([options, &output] { run(*options, output); });
}

}  // namespace vqgen::cli

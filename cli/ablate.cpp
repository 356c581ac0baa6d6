// vqgen ablate: what each part of the codebook cache, the dataflows and the fusions gives for a
// config on a device. Each row is the best measured plan of the space with a restriction.
#include "runtime/ablate.h"

#include "cli/ablate_report.h"
#include "cli/timing_options.h"
#include "runtime/prepare.h"

namespace vqgen::cli {
namespace {

struct AblateArguments {
  std::vector<std::string> configs;
  std::size_t budget = 200;
  std::string hotness;
  TimingOptions timing;
  bool counters = false;
};

constexpr std::array kCountedRows{"GC*", "SC*", "best"};

Ablation searched(const Config& config, const AblateArguments& options, Backend& backend,
                  const GpuSpec& gpu, const AblationSpace& space, const Output& output) {
  output.step("{}: compiling and measuring", config.source);
  std::size_t before = 0;  // plans of the batches that are done
  MeasureOptions measure = measure_options(options.timing, config.problem);
  measure.progress = [&](std::size_t done, std::size_t) {
    output.show(static_cast<double>(before + done) / static_cast<double>(options.budget),
                config.source);
  };
  Measurer measurer(backend, gpu, config.problem, measure);
  return ablate(space, options.budget, [&](const std::vector<Plan>& plans) {
    std::vector<Measurement> results = measurer.measure(plans);
    before += plans.size();
    return results;
  });
}

std::map<std::string, Counters> counted(const Config& config, const AblateArguments& options,
                                        const Backend& backend, const AblationSpace& space,
                                        const Ablation& ablation) {
  std::map<std::string, Counters> counters;
  const CounterOptions how{.tool = std::filesystem::read_symlink("/proc/self/exe"),
                           .gpu = options.timing.gpu,
                           .seed = options.timing.seed};
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

void ablate_config(const Config& config, const AblateArguments& options, Backend& backend,
                   const GpuSpec& gpu, Output& output) {
  const Verdict verdict = check(config.problem);
  if (!verdict.ok) throw Error(ErrorKind::infeasible, config.source + ": " + verdict.reason);
  const std::vector<HotnessProfile> profiles = hotness_of(config);
  const AblationSpace space(config.problem, gpu, profiles);
  const Ablation ablation = searched(config, options, backend, gpu, space, output);
  AblatedConfig result{config, gpu, profiles, space, ablation};
  if (options.counters) result.counters = counted(config, options, backend, space, ablation);
  report_config(result, output);
}

void run(const AblateArguments& options, Output& output) {
  const std::unique_ptr<Backend> backend = make_backend(options.timing);
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
  const GpuSpec gpu = planned_gpu(options.timing, configs.front(), *backend, output);
  output.document["codes"] = read_codes(options.timing.codes).name;
  output.document["seed"] = options.timing.seed;
  output.document["budget"] = options.budget;
  for (const Config& config : configs) ablate_config(config, options, *backend, gpu, output);
  report_summary(output);
}

}  // namespace

void add_ablate(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "ablate",
      "Measure what placement, dataflow, fusion and copies each give: the best plan of each, "
      "verified and timed on a device");
  auto options = std::make_shared<AblateArguments>();
  command->add_option("config", options->configs, "config.json files without a plan of their own")
      ->required();
  command->add_option("--budget", options->budget, "Plans measured of each config, at most")
      ->capture_default_str()
      ->check(whole_number(1, 100000));
  command->add_option("--hotness", options->hotness,
                      "A profile of vqgen profile, by which boundaries are set; goes over the "
                      "config's");
  add_timing_options(*command, options->timing);
  command->add_flag("--counters", options->counters,
                    "Run ncu on the best plans of GC*, SC* and all, and add what it counts");
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([options, &output] { run(*options, output); });
}

}  // namespace vqgen::cli

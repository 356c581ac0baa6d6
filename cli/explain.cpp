// vqgen explain: what a plan is expected to do with a GPU, and why it is as it is.
#include "heuristics/explain.h"

#include "cli/placement_options.h"

namespace vqgen::cli {
namespace {

struct ExplainArguments {
  std::string config;
  std::string gpu;
  PlacementOptions placement;
  bool compile = false;
};

struct Explained {
  Plan plan;
  std::vector<OperandPlacement> placements;
  std::optional<int> registers;
  PlanSource from;
};

Explained explained(const ExplainArguments& options, const Config& config, const GpuSpec& gpu,
                    std::span<const HotnessProfile> profiles, const PlanOptions& plan,
                    const Backend& backend, const Environment& environment, const Output& output) {
  if (!options.compile) {
    Planned planned = plan_with(config, gpu, profiles, plan);
    return {planned.plan, std::move(planned.placements), std::nullopt, std::move(planned.from)};
  }
  const std::unique_ptr<ArtifactCache> cache = make_cache(environment);
  Prepared prepared = prepare(config, gpu, backend, cache.get(), plan);
  note_warning(*cache, output);
  return {prepared.plan, std::move(prepared.placements),
          prepared.artifact.kernels.front().registers, std::move(prepared.from)};
}

void run(const ExplainArguments& options, Output& output) {
  const Environment environment = read_environment();
  Config config = read_config(std::filesystem::path(options.config));
  const auto tables = tables_for(options.placement, environment);
  const PlanOptions plan = apply(options.placement, config, tables.get());
  const std::unique_ptr<Backend> backend = make_cuda(environment);
  const GpuChoice gpu = choose_gpu(options.gpu, config, *backend);
  const std::vector<HotnessProfile> profiles = hotness_of(config);
  output.step("planning {}", options.config);
  const Explained result =
      explained(options, config, gpu.spec, profiles, plan, *backend, environment, output);

  output.document = {{"gpu", gpu.spec.name},
                     {"gpu_reason", gpu.reason},
                     {"problem", to_json(config.problem)},
                     {"plan", to_json(result.plan)},
                     {"placement", placement_json(result.placements)}};
  output.document["registers"] = result.registers ? Json(*result.registers) : Json(nullptr);
  for (const OperandTraffic& each : expected_traffic(result.plan, config.problem, profiles)) {
    output.document["traffic"].push_back(to_json(each));
  }
  const auto cost = CostModel(config.problem, gpu.spec, profiles)(result.plan);
  output.document["expected_us"] = cost ? Json(cost->us) : Json(nullptr);
  for (std::size_t i = 0; cost && i < kCostParts; ++i) {
    output.document["expected_parts_us"][enum_names<CostPart>[i]] = cost->parts.of[i];
  }
  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  output.line("plan {}", to_json(result.plan).dump());
  report_source(result.from, output);
  const ReportInput input{profiles, result.placements, result.registers};
  for (const ReportSection& section : report(result.plan, config.problem, gpu.spec, input)) {
    output.line("\n{}", section.title);
    for (const std::string& line : section.lines) output.line("  {}", line);
    output.document["report"].push_back({{"title", section.title}, {"lines", section.lines}});
  }
}

}  // namespace

void add_explain(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "explain", "Say what the plan of a config is, why, and what it should move; needs no GPU");
  auto options = std::make_shared<ExplainArguments>();
  command->add_option("config", options->config, "config.json")->required();
  command->add_option("--gpu", options->gpu,
                      "A profile's name, a JSON file, or auto for this machine's device");
  add_placement_options(*command, options->placement);
  command->add_flag("--compile", options->compile,
                    "Compile the kernel and go by the registers that it takes");
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([options, &output] { run(*options, output); });
}

}  // namespace vqgen::cli

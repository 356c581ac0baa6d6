// vqgen explain: what a plan is expected to do with a GPU, and why it is as it is.
#include "heuristics/explain.h"

#include "cli/shared_options.h"

namespace vqgen::cli {
namespace {

struct ExplainArguments {
  PlanRequest request;
  bool compile = false;
};

struct Explained : Planned {
  std::optional<int> registers = {};
};

Explained explained(const ExplainArguments& options, const PlanSetting& setting,
                    std::span<const AccessCounts> profiles, const Output& output) {
  const auto& [environment, config, tables, plan, backend, gpu] = setting;
  if (!options.compile) return {plan_with(config, gpu.spec, profiles, plan)};
  const std::unique_ptr<ArtifactCache> cache = make_cache(environment);
  const Prepared prepared = prepare(config, gpu.spec, *backend, cache.get(), plan);
  note_warning(*cache, output);
  return {prepared, main_resources(prepared, config.problem).registers};
}

void run(const ExplainArguments& options, Output& output) {
  const PlanSetting setting = plan_setting(options.request);
  const Config& config = setting.config;
  const GpuSpec& gpu = setting.gpu.spec;
  const std::vector<AccessCounts> profiles = access_counts_of(config);
  output.step("planning {}", options.request.config);
  const Explained result = explained(options, setting, profiles, output);

  output.document = {{"problem", to_json(config.problem)},
                     {"plan", to_json(result.plan)},
                     {"placement", placement_json(result.placements)}};
  output.document["registers"] = json_or_null(result.registers);
  for (const OperandTraffic& each : expected_traffic(result.plan, config.problem, profiles)) {
    output.document["traffic"].push_back(to_json(each));
  }
  const auto cost = CostModel(config.problem, gpu, profiles)(result.plan);
  output.document["expected_us"] = cost ? Json(cost->us) : Json(nullptr);
  for (std::size_t i = 0; cost && i < kCostParts; ++i) {
    output.document["expected_parts_us"][enum_names<CostPart>[i]] = cost->parts.of[i];
  }
  report_gpu(setting.gpu, output);
  output.line("plan {}", to_json(result.plan).dump());
  report_source(result.from, output);
  const ReportInput input{profiles, result.placements, result.registers};
  for (const ReportSection& section : report(result.plan, config.problem, gpu, input)) {
    output.line("\n{}", section.title);
    for (const std::string& line : section.lines) output.line("  {}", line);
    output.document["report"].push_back({{"title", section.title}, {"lines", section.lines}});
  }
}

}  // namespace

void add_explain(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ExplainArguments>(
      app, output, "explain",
      "Say what the plan of a config is, why, and what it should move; needs no GPU", run);
  add_plan_options(*command, options->request);
  add_examples(
      *command, "vqgen explain examples/configs/llama3-8b-attention-2bit.json --gpu h200",
      "vqgen explain examples/configs/llama3-8b-up-aqlm-2x8.json --gpu a100 --planner rules");
  command->add_flag("--compile", options->compile,
                    "Compile the kernel and go by the registers that it takes");
}

}  // namespace vqgen::cli

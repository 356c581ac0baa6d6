#include "cli/shared_options.h"

#include "runtime/tuning/journal/journal.h"

namespace vqgen::cli {

void add_planner_option(CLI::App& command, std::string& chooser) {
  command
      .add_option("--planner", chooser, "The planner: the heuristics (rules), or the cost model")
      ->capture_default_str()
      ->check(CLI::IsMember(enum_names<Chooser>));
}

void add_plan_options(CLI::App& command, PlanRequest& request) {
  command.add_option("config", request.config, "config.json")->required();
  command.add_option("--gpu", request.gpu, "The GPU to plan for: a name, a JSON file, or auto");
  command
      .add_option(
          "--planner", request.chooser,
          "The planner: tuned tables, else as model; the cost model; or the heuristics (rules)")
      ->capture_default_str()
      ->check(CLI::IsMember({kTuned, "model", "rules"}));
  command.add_option("--access-counts", request.access_counts,
                     "Place entries by a file of vqgen count-accesses [the config's]");
  command
      .add_option("--placement", request.placement,
                  "Place entries by what each level saves, or as VQ-LLM does [default]")
      ->check(CLI::IsMember({"default", "vq-llm"}));
}

PlanSetting plan_setting(const PlanRequest& request) {
  PlanSetting setting{read_environment(), read_config(std::filesystem::path(request.config))};
  if (request.chooser == kTuned) setting.tables = make_tables(setting.environment);
  if (!request.access_counts.empty()) {
    setting.config.access_counts = request.access_counts;
    setting.config.access_counts_place = "--access-counts";
  }
  if (!request.placement.empty() && !setting.config.access_counts) {
    throw Error(
        ErrorKind::bad_input,
        "--placement places entries by access counts; name a file of them with --access-counts");
  }
  setting.plan = {.chooser = enum_of(request.chooser, kDefaultChooser),
                  .tables = setting.tables.get()};
  if (request.placement == "vq-llm") setting.plan.place.strategy = Strategy::paper;
  setting.backend = make_cuda(setting.environment);
  setting.gpu = choose_gpu(request.gpu, setting.config, *setting.backend);
  return setting;
}

void report_gpu(const GpuChoice& gpu, Output& output) {
  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  output.document["gpu"] = gpu.spec.name;
  output.document["gpu_reason"] = gpu.reason;
}

void report_source(const PlanSource& source, Output& output) {
  output.line("plan from {}: {}", enum_name(source.rung), one_line(source.why));
  output.document["plan_from"] = to_json(source);
}

Json placement_json(const std::vector<OperandPlacement>& placements) {
  Json json = Json::array();
  for (const OperandPlacement& each : placements) {
    json.push_back({{"operand", enum_name(each.operand)},
                    {"placement", to_json(each.placement)},
                    {"reasons", each.reasons}});
  }
  return json;
}

void add_timing_options(CLI::App& command, TimingOptions& options) {
  command
      .add_option("--backend", options.backend, "Where to measure; host times are a CPU's [cuda]")
      ->check(CLI::IsMember({"host", "cuda"}));
  command.add_option("--gpu", options.gpu, "The GPU to plan for: a name, a JSON file, or auto");
  command
      .add_option("--code-distribution", options.codes,
                  "uniform, zipf:S (weight r^-S of rank r), a file of access counts, or a bundle")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Seed for the generated input")
      ->capture_default_str()
      ->check(whole_number(0, kMostSeed));
  command.add_flag(
      "--shared-codebooks", options.shared_codebooks,
      "Let all calls read the same codebooks, which stay cached [each call another layer's]");
}

CLI::Option* add_active_experts(CLI::App& command, int& touched) {
  return command
      .add_option("--active-experts", touched,
                  "Experts that have rows, drawn at random, the same number each")
      ->check(whole_number(1, kMostExperts));
}

void require_active_experts(int touched, const Problem& problem) {
  if (touched == 0) return;
  const Linear* const op = as_linear(problem);
  if (op == nullptr || !op->shape.grouped()) {
    throw Error(ErrorKind::bad_input,
                "--active-experts goes with a config that has experts; this one has none");
  }
  if (touched > op->shape.most_touched()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("--active-experts {} are more than the {} of the config that can have "
                            "rows; lower it, or raise total_rows",
                            touched, op->shape.most_touched()));
  }
}

CodebookCaching codebooks_of(const TimingOptions& options) {
  const bool warm = options.shared_codebooks || options.backend == "host";
  return warm ? CodebookCaching::warm : CodebookCaching::rotated;
}

MeasureOptions measure_options(const TimingOptions& options, const Problem& problem) {
  MeasureOptions measure;
  measure.input = hard_input(read_codes(options.codes), options.seed, problem);
  require_active_experts(options.active_experts, problem);
  measure.input.active_experts = options.active_experts;
  measure.codebooks = codebooks_of(options);
  return options.backend == "host" ? on_host(std::move(measure)) : measure;
}

std::unique_ptr<Backend> make_backend(const TimingOptions& options) {
  const Environment environment = read_environment();
  return options.backend == "host" ? make_host(environment) : make_cuda(environment);
}

void note_host(const Output& output, const std::string& what) {
  output.note(
      "{}: on this CPU, where a call may take seconds: each time is that of one call, and says "
      "nothing of a GPU",
      what);
}

GpuSpec planned_gpu(const TimingOptions& options, const Config& first, const Backend& backend,
                    Output& output) {
  const GpuChoice gpu = choose_gpu(options.gpu, first, backend);
  output.document["gpu"] = gpu.spec.name;
  output.document["gpu_reason"] = gpu.reason;
  output.document["gpu_spec"] = to_json(gpu.spec);
  output.document["backend"] = backend.name();
  output.document["codebooks"] = enum_name(codebooks_of(options));
  return gpu.spec;
}

void note_untimed(const std::string& config, std::span<const Measurement> measured,
                  Output& output) {
  const auto timed = [](const Measurement& m) { return m.outcome == Outcome::timed; };
  if (measured.empty() || std::ranges::any_of(measured, timed)) return;
  const Measurement& first = measured.front();
  const ErrorKind kind = first.outcome == Outcome::infeasible ? ErrorKind::infeasible
                         : first.outcome == Outcome::wrong    ? ErrorKind::verification_failed
                                                              : ErrorKind::device;
  if (output.exit_code == 0) output.exit_code = static_cast<int>(kind);
  output.note("vqgen: {}: none of {} plans could be timed; the first is {}: {}", config,
              measured.size(), enum_name(first.outcome), first.why);
}

Json measurement_json(const Measurement& m) {
  Json json = to_json(m);
  json["plan"] = to_json(m.plan);
  return json;
}

}  // namespace vqgen::cli

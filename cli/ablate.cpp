// vqgen dev ablate: what each part of the codebook cache, the dataflows and the fusions gives for a
// config on a device. Each row is the best measured plan of the space with a restriction.
#include "runtime/ablate.h"

#include <cmath>
#include <map>

#include "cli/shared_options.h"
#include "heuristics/traffic.h"
#include "runtime/counters.h"

namespace vqgen::cli {
namespace {

struct AblateArguments {
  std::vector<std::string> configs;
  std::size_t budget = 200;
  std::string access_counts;
  TimingOptions timing;
  bool counters = false;
};

// A config that was searched, to be reported.
struct AblatedConfig {
  const Config& config;
  const GpuSpec& gpu;
  const std::vector<AccessCounts>& profiles;
  const AblationSpace& space;
  const Ablation& ablation;
  std::map<std::string, Counters> counters = {};  // by row name
};

// The nearest row above that has a time, of a row that adds to those.
std::optional<std::size_t> above(const AblatedConfig& ablated, std::size_t row) {
  if (!ablated.space.rows()[row].adds) return std::nullopt;
  while (row-- > 0) {
    if (ablated.ablation.best(row) != nullptr) return row;
  }
  return std::nullopt;
}

// Occupancy: resident warps, by the device or else the model, of those that an SM can hold, as far
// as the grid has blocks for it.
double occupancy_percent(const Measurement& m, const Residency& residency, const GpuSpec& gpu) {
  const int held = m.blocks_per_sm > 0 ? m.blocks_per_sm : residency.occupancy.blocks;
  const auto blocks = std::min<std::int64_t>(held, residency.blocks_an_sm(gpu));
  return 100.0 * static_cast<double>(blocks * residency.threads) / gpu.max_threads_per_sm;
}

// "1.8" or, of keys and values, "1.8,2.3".
std::string passes_text(const std::vector<OperandTraffic>& traffic) {
  std::string text;
  for (const OperandTraffic& each : traffic) {
    text += fmt::format("{}{:.1f}", text.empty() ? "" : ",", each.conflict_factor);
  }
  return text;
}

// Shares of the lookups in per cent: registers/copies/shared/global.
std::string levels_text(const std::vector<OperandTraffic>& traffic) {
  std::string text;
  for (const OperandTraffic& each : traffic) {
    text += fmt::format("{}{:.0f}/{:.0f}/{:.0f}/{:.0f}", text.empty() ? "" : ",",
                        100 * each.in_registers, 100 * each.replicated, 100 * each.shared,
                        100 * each.global);
  }
  return text;
}

Json counters_json(const Counters& counters) {
  if (!counters.why.empty()) return {{"why", counters.why}};
  Json json = Json::object();
  for (const auto& [name, value] : counters.values) json[name] = value;
  return json;
}

Json row_json(const AblatedConfig& ablated, std::size_t i) {
  const AblationRow& row = ablated.space.rows()[i];
  const AblatedRow& result = ablated.ablation.rows[i];
  Json json = {{"name", row.name}, {"what", row.what}, {"plans", result.plans}};
  if (!row.note.empty()) json["note"] = row.note;
  const Measurement* best = ablated.ablation.best(i);
  if (best == nullptr) {
    json["why"] = result.why;
    return json;
  }
  json["measurement"] = measurement_json(*best);
  json["in_short"] = in_short(best->plan, ablated.config.problem);
  const std::optional<std::size_t> over = above(ablated, i);
  json["above"] = over ? Json(ablated.space.rows()[*over].name) : Json(nullptr);
  json["ratio_to_above"] =
      json_or_null(over ? ablated.ablation.ratio(i, *over) : std::optional<double>());
  json["ratio_to_gc"] = json_or_null(ablated.ablation.ratio(i, 0));
  const Residency residency =
      expected_residency(best->plan, ablated.config.problem, ablated.gpu, best->registers);
  json["occupancy_percent"] = occupancy_percent(*best, residency, ablated.gpu);
  for (const OperandTraffic& each :
       expected_traffic(best->plan, ablated.config.problem, ablated.profiles)) {
    json["traffic"].push_back(to_json(each));
  }
  const auto counted = ablated.counters.find(row.name);
  if (counted != ablated.counters.end()) json["counters"] = counters_json(counted->second);
  return json;
}

void print_row(const AblatedConfig& ablated, std::size_t i, const Output& output) {
  const AblationRow& row = ablated.space.rows()[i];
  const AblatedRow& result = ablated.ablation.rows[i];
  const Measurement* best = ablated.ablation.best(i);
  if (best == nullptr) {
    output.line("{:<13} none: {}", row.name, result.why);
    return;
  }
  const auto traffic = expected_traffic(best->plan, ablated.config.problem, ablated.profiles);
  const Residency residency =
      expected_residency(best->plan, ablated.config.problem, ablated.gpu, best->registers);
  const std::optional<std::size_t> over = above(ablated, i);
  output.line("{:<13} {:>8.2f} {:>6} {:>6} {:>5} {:>4} {:>5} {:>7} {:>4} {:>4.0f} {:>8} {:>16}  {}",
              row.name, best->time_us,
              ratio_text(over ? ablated.ablation.ratio(i, *over) : std::optional<double>()),
              ratio_text(ablated.ablation.ratio(i, 0)), result.plans, best->registers,
              best->spill_bytes, best->shared_bytes, best->blocks_per_sm,
              occupancy_percent(*best, residency, ablated.gpu), passes_text(traffic),
              levels_text(traffic), in_short(best->plan, ablated.config.problem));
}

void print_counters(const AblatedConfig& ablated, const Output& output) {
  for (const auto& [name, counters] : ablated.counters) {
    if (!counters.why.empty()) {
      output.line("counters of {}: none: {}", name, counters.why);
      continue;
    }
    std::string text;
    for (const auto& [metric, value] : counters.values) {
      text += fmt::format("{}{} {:.0f}", text.empty() ? "" : ", ", metric, value);
    }
    output.line("counters of {}: {}", name, text);
  }
}

// Geometric mean of the ratios present; nullopt if there are none.
std::optional<double> geometric_mean(const Json& configs, const char* ratio) {
  double sum = 0;
  int count = 0;
  for (const Json& each : configs) {
    if (each[ratio].is_null()) continue;
    sum += std::log(each[ratio].get<double>());
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(sum / count);
}

// The row of that name, which must be one.
std::size_t row_of(const AblationSpace& space, const std::string& name) {
  std::size_t row = 0;
  while (space.rows().at(row).name != name) ++row;
  return row;
}

// Prints the table, and appends the same and more to the document's "configs".
void report_config(const AblatedConfig& ablated, Output& output) {
  const std::size_t best = row_of(ablated.space, "best");
  const auto over_gc = ablated.ablation.ratio(best, row_of(ablated.space, "GC*"));
  const auto over_sc = ablated.ablation.ratio(best, row_of(ablated.space, "SC*"));
  Json json = {{"config", ablated.config.source},
               {"problem", to_json(ablated.config.problem)},
               {"shapes", ablated.space.shapes().size()},
               {"plans", ablated.ablation.measurements.size()},
               {"best_over_gc", json_or_null(over_gc)},
               {"best_over_sc", json_or_null(over_sc)},
               {"rows", Json::array()},
               {"measurements", Json::array()}};
  output.line("{}: {} plans measured, {} shapes in the space", ablated.config.source,
              ablated.ablation.measurements.size(), ablated.space.shapes().size());
  output.line("{:<13} {:>8} {:>6} {:>6} {:>5} {:>4} {:>5} {:>7} {:>4} {:>4} {:>8} {:>16}  plan",
              "row", "us", "/above", "/GC", "plans", "regs", "spill", "shared", "b/SM", "occ%",
              "passes", "r/c/s/g %");
  for (std::size_t i = 0; i < ablated.space.rows().size(); ++i) {
    print_row(ablated, i, output);
    json["rows"].push_back(row_json(ablated, i));
  }
  for (const AblationRow& row : ablated.space.rows()) {
    if (!row.note.empty()) output.line("{}: {}", row.name, row.note);
  }
  print_counters(ablated, output);
  output.line("best/GC* {}, best/SC* {}\n", ratio_text(over_gc), ratio_text(over_sc));
  for (const Measurement& each : ablated.ablation.measurements) {
    if (each.outcome == Outcome::wrong || each.outcome == Outcome::compile_failed) {
      output.note("{}: {}: {}: {}", ablated.config.source, enum_name(each.outcome), each.why,
                  to_json(each.plan).dump());
    }
    json["measurements"].push_back(measurement_json(each));
  }
  output.document["configs"].push_back(std::move(json));
  note_untimed(ablated.config.source, ablated.ablation.measurements, output);
}

// best/GC* and best/SC* of each config and their geometric means, over the configs that have them;
// of what report_config() put into the document.
void report_summary(Output& output) {
  const Json& configs = output.document["configs"];
  const auto gc = geometric_mean(configs, "best_over_gc");
  const auto sc = geometric_mean(configs, "best_over_sc");
  output.document["geometric_mean"] = {{"best_over_gc", json_or_null(gc)},
                                       {"best_over_sc", json_or_null(sc)}};
  if (configs.size() < 2) return;
  const auto cell = [](const Json& ratio) {
    return ratio.is_null() ? std::string("-") : fmt::format("{:.2f}", ratio.get<double>());
  };
  output.line("{:>9} {:>9}  config", "best/GC*", "best/SC*");
  for (const Json& each : configs) {
    output.line("{:>9} {:>9}  {}", cell(each["best_over_gc"]), cell(each["best_over_sc"]),
                each["config"].get<std::string>());
  }
  output.line("{:>9} {:>9}  geometric mean", ratio_text(gc), ratio_text(sc));
}

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
  const std::vector<AccessCounts> profiles = access_counts_of(config);
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
    if (!options.access_counts.empty()) {
      configs.back().access_counts = options.access_counts;
      configs.back().access_counts_place = "--access-counts";
    }
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
  const auto [command, options] = add_command<AblateArguments>(
      app, output, "ablate",
      "Measure what placement, dataflow, fusion and copies each give on a device", run);
  add_examples(
      *command, "vqgen dev ablate examples/configs/llama3-8b-up-aqlm-2x8.json",
      "vqgen dev ablate examples/configs/tinycode-layer.json --backend host --gpu h200 --budget 2");
  command->add_option("config", options->configs, "config.json files without a plan of their own")
      ->required();
  command->add_option("--budget", options->budget, "Plans to measure per config, at most")
      ->capture_default_str()
      ->check(whole_number(1, 100000));
  command->add_option("--access-counts", options->access_counts,
                      "Set boundaries by a file of vqgen count-accesses [the config's]");
  add_timing_options(*command, options->timing);
  command->add_flag("--counters", options->counters,
                    "Run ncu on the best plans of GC*, SC* and all, and add what it counts");
}

}  // namespace vqgen::cli

// vqgen dev regret: measurements of vqgen dev space against what the choosers take and what the
// cost model expects. Its JSON is what scripts/fit_cost.py fits the model to.
#include <algorithm>
#include <cmath>

#include "cli/dev.h"
#include "core/plan/plan_name.h"
#include "heuristics/choose.h"
#include "heuristics/space.h"
#include "runtime/tuning/journal/journal.h"

namespace vqgen::cli {
namespace {

using Files = std::vector<std::string>;

// One measured plan and what is expected of it.
struct Timed {
  Plan plan;
  double us = 0;
  std::optional<Cost> expected = std::nullopt;
  CostParts ideal = {};
};

JsonCursor member(const JsonCursor& cursor, const char* name) {
  return cursor.member(name, "; give a file of vqgen measure --json");
}

// The timed plans that check() accepts here.
std::vector<Timed> read_timed(const JsonCursor& measurements, const Problem& problem,
                              const GpuSpec& gpu) {
  CostModel model(problem, gpu, {});
  std::vector<Timed> all;
  for (std::size_t i = 0; i < require_array(measurements).value().size(); ++i) {
    const JsonCursor each = measurements.at(i);
    if (member(each, "outcome").string() != "timed") continue;
    Timed timed{read_plan(member(each, "plan"), problem), read_time(member(each, "time_us"))};
    if (!check(timed.plan, problem, gpu).ok) continue;
    timed.expected = model(timed.plan);
    timed.ideal = model.ideal(timed.plan);
    all.push_back(timed);
  }
  return all;
}

// Geometric mean and the largest of some ratios.
struct Summary {
  double logs = 0;
  double worst = 0;
  int count = 0;
  void add(double ratio) {
    logs += std::log(ratio);
    worst = std::max(worst, ratio);
    ++count;
  }
  double mean() const { return count == 0 ? 0 : std::exp(logs / count); }
};

using Totals = std::map<std::string, Summary>;  // by chooser

// Regret of a chooser: the time of its plan over the best, if that plan was timed.
std::optional<double> regret(const std::vector<Timed>& timed, const Plan& chosen, double best) {
  for (const Timed& each : timed) {
    if (each.plan == chosen) return each.us / best;
  }
  return std::nullopt;
}

Json timed_json(const Timed& each, const Problem& problem) {
  Json json = {{"plan", to_json(each.plan)},
               {"kind", kind_of(each.plan, problem)},
               {"dataflow", cost_name(each.plan)},
               {"time_us", each.us},
               {"expected_us", each.expected ? Json(each.expected->us) : Json(nullptr)}};
  for (std::size_t i = 0; i < kCostParts; ++i) {
    json["ideal_us"][enum_names<CostPart>[i]] = each.ideal.of[i];
  }
  return json;
}

void compare(const Config& config, const GpuSpec& gpu, const std::vector<Timed>& timed,
             Totals& totals, Output& output) {
  const auto faster = [](const Timed& a, const Timed& b) { return a.us < b.us; };
  const auto cheaper = [](const Timed& a, const Timed& b) {
    const double infinite = std::numeric_limits<double>::infinity();
    return (a.expected ? a.expected->us : infinite) < (b.expected ? b.expected->us : infinite);
  };
  const Timed& best = *std::min_element(timed.begin(), timed.end(), faster);
  const Timed& expected = *std::min_element(timed.begin(), timed.end(), cheaper);
  const std::string name = std::filesystem::path(config.source).stem().string();
  Json json = {{"config", name}, {"best_us", best.us}, {"best", to_json(best.plan)}};
  std::map<std::string, std::optional<double>> ratios;
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    const Plan chosen = choose(config.problem, gpu, {.chooser = chooser});
    ratios[std::string(enum_name(chooser))] = regret(timed, chosen, best.us);
    json[enum_name(chooser)] = to_json(chosen);
  }
  ratios["measured"] = expected.us / best.us;
  for (const auto& [which, ratio] : ratios) {
    json["regret"][which] = json_or_null(ratio);
    if (ratio) totals[which].add(*ratio);
  }
  output.line("{:<36} {:>9.2f} {:>7} {:>7} {:>8}  {}", name, best.us, ratio_text(ratios["rules"]),
              ratio_text(ratios["model"]), ratio_text(ratios["measured"]),
              kind_of(best.plan, config.problem));
  for (const Timed& each : timed) json["timed"].push_back(timed_json(each, config.problem));
  output.document["configs"].push_back(std::move(json));
}

// One config of a file.
struct Measured {
  Config config;
  GpuSpec gpu;
  std::vector<Timed> timed;
};

std::vector<Measured> read_measured(const std::string& file) {
  const Json json = parse_json_file(file);
  const JsonCursor root(json, file);
  GpuSpec gpu;
  read_fields(member(root, "gpu_spec"), gpu);
  const JsonCursor configs = member(root, "configs");
  std::vector<Measured> all;
  for (std::size_t i = 0; i < require_array(configs).value().size(); ++i) {
    const JsonCursor each = configs.at(i);
    const JsonCursor problem = member(each, "problem");
    Config config = read_config(problem.value(), fmt::format("{}: {}", file, problem.path()));
    config.source = member(each, "config").string();
    std::vector<Timed> timed = read_timed(member(each, "measurements"), config.problem, gpu);
    if (timed.empty()) each.fail("holds no plan that was timed");
    all.push_back({std::move(config), gpu, std::move(timed)});
  }
  return all;
}

void run(const Files& files, Output& output) {
  std::vector<Measured> all;
  for (const std::string& file : files) {
    for (Measured& each : read_measured(file)) all.push_back(std::move(each));
  }
  Totals totals;
  Summary error;
  output.line("{:<36} {:>9} {:>7} {:>7} {:>8}  {}", "config", "best us", "rules", "model",
              "measured", "best plan");
  for (const auto& [config, gpu, timed] : all) {
    output.step("choosing for {}", config.source);
    output.document["gpu"] = gpu.name;
    for (const Timed& one : timed) {
      if (one.expected) error.add(std::max(one.us / one.expected->us, one.expected->us / one.us));
    }
    compare(config, gpu, timed, totals, output);
  }
  for (const auto& [which, summary] : totals) {
    output.line("{}: {:.3f} times the best by geometric mean of {}, {:.2f} at worst", which,
                summary.mean(), summary.count, summary.worst);
    output.document["summary"][which] = {
        {"mean", summary.mean()}, {"worst", summary.worst}, {"count", summary.count}};
  }
  output.line(
      "expected times are off by a factor of {:.2f} by geometric mean of {}, {:.2f} at worst",
      error.mean(), error.count, error.worst);
}

}  // namespace

void add_regret(CLI::App& app, Output& output) {
  const auto [command, files] = add_command<Files>(
      app, output, "regret",
      "Compare measurements of vqgen dev space --json with what the planners take", run);
  add_examples(*command, "vqgen dev regret out/space.json",
               "vqgen dev regret out/space.json out/likely.json --json");
  command->add_option("measured", *files, "JSON files of vqgen dev space")->required();
}

}  // namespace vqgen::cli

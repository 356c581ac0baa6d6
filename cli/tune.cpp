// vqgen tune: the fastest plan for each of some configs, searched on a device within a budget, and
// written to a tuned table. A tuning that was ended goes on from the journal beside the table.
#include "runtime/tuning/tune.h"

#include <algorithm>

#include "cli/tune_evaluator.h"
#include "cli/tune_output.h"
#include "core/digest.h"
#include "core/files.h"
#include "runtime/prepare.h"
#include "runtime/tuning/duration.h"
#include "runtime/tuning/journal.h"

namespace vqgen::cli {
namespace {

struct TuneArguments {
  std::vector<std::string> configs;
  TimingOptions timing;
  std::string budget = "60s";
  std::string strategy = "model";
  int rounds = TuneOptions{}.rounds;
  std::size_t most = 0;
  std::string out;
  std::string journal;
  bool restart = false;
  std::string replay;
};

StrategyName strategy_of(const std::string& name) {
  const auto& names = enum_names<StrategyName>;
  return static_cast<StrategyName>(std::find(names.begin(), names.end(), name) - names.begin());
}

constexpr const char* kTableHeader = R"({"vqgen_tuned":1})";

// The rows of a table, none where there is no file yet.
std::vector<TunedRow> read_rows(const std::string& path) {
  std::vector<TunedRow> rows;
  if (path.empty() || !std::filesystem::exists(path)) return rows;
  const std::string text = read_text(path);
  std::size_t number = 1;
  for (std::size_t at = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string source = fmt::format("{}:{}", path, number);
    const Json json = parse_json(text.substr(at, end - at), source);
    const JsonCursor cursor(json, source);
    if (number > 1) {
      rows.push_back(read_tuned_row(cursor));
    } else if (json != Json::parse(kTableHeader)) {
      cursor.fail("is no tuned table, which begins with " + std::string(kTableHeader));
    }
    at = end + 1;
  }
  return rows;
}

// In place of the row that has its key, if any.
void write_row(const std::string& path, const TunedRow& row) {
  std::map<std::string, std::string> lines;
  for (const TunedRow& each : read_rows(path)) lines[tuned_key(each)] = to_json(each).dump();
  lines[tuned_key(row)] = to_json(row).dump();
  std::string text = std::string(kTableHeader) + "\n";
  for (const auto& [key, line] : lines) text += line + "\n";
  publish_text(path, text);
}

std::string journal_path(const TuneArguments& options, const std::string& key) {
  if (!options.journal.empty() || options.out.empty()) return options.journal;
  return fmt::format("{}.{}.journal", options.out, Digest().add(key).hex().substr(0, 12));
}

void tune_config(const Config& config, const TuneArguments& options, const GpuSpec& gpu,
                 Backend& backend, Output& output) {
  TuneSource source = make_evaluator(options.timing, options.replay, config.problem, gpu, backend);
  source.policy.rounds = options.rounds;
  TuneOptions tuning;
  tuning.strategy = strategy_of(options.strategy);
  tuning.budget_s = read_seconds(options.budget, "--budget");
  tuning.most = options.most;
  tuning.seed = options.timing.seed;
  tuning.rounds = options.rounds;
  tuning.policy = source.policy;
  tuning.environment = source.environment;
  tuning.profiles = hotness_of(config);
  const std::string key = tuned_key(config.problem, gpu.name, source.policy.codes);
  for (const TunedRow& row : read_rows(options.out)) {
    if (tuned_key(row) == key) tuning.incumbent = row.plan;
  }
  Json json{{"config", config.source}, {"journal", nullptr}};
  Evaluator* evaluator = source.evaluator.get();
  std::unique_ptr<JournaledEvaluator> journaled;
  if (const std::string path = journal_path(options, key); !path.empty()) {
    const Json header =
        journal_header(config.problem, gpu, source.policy, source.environment, source.code);
    journaled = std::make_unique<JournaledEvaluator>(*evaluator, path, header, options.restart);
    evaluator = journaled.get();
    json["journal"] = {{"path", path}, {"resumed", journaled->recorded()}};
    if (journaled->recorded() > 0) {
      output.line("{}: goes on from {} measurements of {}", config.source, journaled->recorded(),
                  path);
    }
  }
  const TuneResult result = [&] {
    Progress bar;
    const std::string name = std::filesystem::path(config.source).stem().string();
    tuning.progress = [&](const TuneProgress& each) { show_progress(bar, name, each); };
    return tune(config.problem, gpu, *evaluator, tuning);
  }();
  if (!options.out.empty()) write_row(options.out, result.row);
  print_tuning(config.source, result, output);
  json.update(tuning_json(result));
  output.document["tunings"].push_back(std::move(json));
}

void run(const TuneArguments& options, Output& output) {
  if (!options.journal.empty() && options.configs.size() > 1) {
    throw Error(ErrorKind::bad_input,
                "--journal is of one config; with more leave it out, they stand beside --out");
  }
  if (options.restart && options.journal.empty() && options.out.empty()) {
    throw Error(ErrorKind::bad_input,
                "--restart begins a journal anew; name it by --journal or the table by --out");
  }
  read_seconds(options.budget, "--budget");
  if (!options.out.empty()) require_place("tune", "--out", options.out);
  if (!options.journal.empty()) require_place("tune", "--journal", options.journal);
  read_rows(options.out);
  std::vector<Config> configs;
  for (const std::string& path : options.configs) {
    configs.push_back(read_config(std::filesystem::path(path)));
    if (!configs.back().plan.empty()) {
      throw Error(ErrorKind::bad_input,
                  path + ": /plan: tune searches all fields of the plan; remove it");
    }
  }
  const std::unique_ptr<Backend> backend = make_backend(options.timing);
  const GpuSpec gpu = planned_gpu(options.timing, configs.front(), *backend, output);
  for (const Config& config : configs) tune_config(config, options, gpu, *backend, output);
}

}  // namespace

void add_tune(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "tune", "Search the fastest plan of each config on a device, and write a tuned table");
  auto options = std::make_shared<TuneArguments>();
  command->add_option("config", options->configs, "config.json files")->required();
  command
      ->add_option("--budget", options->budget,
                   "Measuring time of each config, finals included: 90, 60s, 1.5m, 2h")
      ->capture_default_str();
  command
      ->add_option("--strategy", options->strategy,
                   "exhaustive, random, local (climbs to neighbours), or model (the cost model, "
                   "corrected by what was measured)")
      ->capture_default_str()
      ->check(CLI::IsMember(enum_names<StrategyName>));
  command->add_option("--rounds", options->rounds, "Of the finals")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--most", options->most, "Candidates at most; 0 for no bound")
      ->capture_default_str();
  command->add_option("--out", options->out,
                      "The tuned table that takes the row; its own row is the incumbent");
  command->add_option("--journal", options->journal,
                      "The journal that the tuning goes on from; by default beside --out");
  command->add_flag("--restart", options->restart, "Begin the journal anew");
  command->add_option("--replay", options->replay,
                      "Instead of a device: a file of vqgen measure --space 0 --json, or an array "
                      "of plans' names and times");
  add_timing_options(*command, options->timing);
  command->add_flag("--json", output.json, "One JSON document on stdout, with all trials");
  command->callback([options, &output] { run(*options, output); });
}

}  // namespace vqgen::cli

// vqgen tune: the fastest plan for each problem of a config or a sweep, searched on a device within
// a budget, and written to a tuned table. What was ended goes on from the journals beside it.
#include "runtime/tuning/search/tune.h"

#include <cctype>

#include "cli/tune_evaluator.h"
#include "cli/tune_report.h"
#include "runtime/environment.h"
#include "runtime/tuning/journal/journal.h"
#include "runtime/tuning/journal/replay.h"
#include "runtime/tuning/sweep/sweep.h"

namespace vqgen::cli {
namespace {

struct TuneArguments {
  std::string work;
  TimingOptions timing;
  std::string budget = "60s";
  std::string strategy = "model";
  int rounds = TuneOptions{}.rounds;
  std::size_t most = 0;
  std::string out, journal, shard, replay;
  bool restart = false;
};

// A GPU's name as a file name: "NVIDIA H200" is nvidia-h200.
std::string file_name_of(const std::string& gpu) {
  std::string name;
  for (const char each : gpu) {
    const auto letter = static_cast<unsigned char>(each);
    if (std::isalnum(letter) != 0) {
      name += static_cast<char>(std::tolower(letter));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name;
}

// Folders that a path lacked, made; those that are empty at the end go again.
class NewFolders {
 public:
  void make(const std::filesystem::path& path) {
    for (auto each = path; !each.empty() && !std::filesystem::exists(each);
         each = each.parent_path()) {
      made_.push_back(each);
    }
    std::filesystem::create_directories(path);
  }
  ~NewFolders() {
    std::error_code not_empty;
    for (const std::filesystem::path& each : made_) std::filesystem::remove(each, not_empty);
  }

 private:
  std::vector<std::filesystem::path> made_;  // inner ones first
};

// The table that takes the rows: what --out says, else the user's own, which lookups read. None for
// times that are no GPU's.
std::filesystem::path table_of(const TuneArguments& options, const GpuSpec& gpu,
                               const Backend& backend, NewFolders& folders) {
  if (!options.out.empty()) return options.out;
  if (!options.replay.empty() || backend.machine() != Machine::cuda) return {};
  const TunedEnvironment environment = read_environment().tuned;
  const auto folder = default_tuned_dir(environment);
  if (!folder || environment.vqgen_tuned_path.value_or("") != "") {
    throw Error(ErrorKind::bad_input,
                "tune: no folder of one's own tables, since VQGEN_TUNED_PATH says where they are "
                "or HOME is not set; name the table by --out");
  }
  folders.make(*folder);
  return *folder / (file_name_of(gpu.name) + ".jsonl");
}

// One run of the command: its work, and the table as it grows.
class TuneCommand {
 public:
  TuneCommand(const TuneArguments& options, Work work, Output& output)
      : options_(options), work_(std::move(work)), output_(output) {
    if (options_.timing.codes.empty())
      options_.timing.codes = work_.access_counts.value_or("uniform");
    items_ = items_of(work_, choose_shard(options.shard, environment_variable).shard);
    if (!options.journal.empty() && items_.size() > 1) {
      throw Error(
          ErrorKind::bad_input,
          fmt::format(
              "--journal is of one problem, and {} has {}; leave it out to have them beside --out",
              options.work, items_.size()));
    }
    backend_ = make_backend(options.timing);
    Config first;
    first.problem = work_.items.front().problem;
    first.gpu = work_.gpu;
    first.source = options.work;
    gpu_ = planned_gpu(options.timing, first, *backend_, output);
    if (!options.replay.empty()) {
      output.document["codebooks"] = enum_name(recorded_codebooks(options.replay));
    }
    if (options.replay.empty() && backend_->machine() == Machine::cuda) {
      require_class(gpu_, backend_->device());
    }
    path_ = table_of(options, gpu_, *backend_, folders_);
    if (options.restart && path_.empty() && options.journal.empty()) {
      throw Error(ErrorKind::bad_input,
                  "--restart begins journals again; name the table that they are beside by --out, "
                  "or the one journal by --journal");
    }
    // Read now, to report faults before anything is measured.
    if (!path_.empty()) table_ = writable_table(path_);
    sweep_ = {.name = work_.name, .gpu = gpu_.name, .problems = {}, .skipped = work_.skipped};
  }

  void run() {
    for (const std::size_t index : items_) {
      TunedProblem problem{.item = work_.items[index], .result = {}};
      tune_item(problem);
      report_problem(problem, output_);
      output_.document["problems"].back()["journal"] = journal_;
      if (items_.size() == 1 && problem.why.empty()) {
        print_tuning(problem.item.label, problem.result, output_);
      }
      sweep_.problems.push_back(std::move(problem));
    }
    if (work_.items.size() > 1 || !work_.skipped.empty()) report_sweep(sweep_, output_);
    if (path_.empty()) return;
    // Written even if empty, so that the tables of all shards can be merged.
    if (output_.exit_code == 0 && table_.rows.empty()) table_ = made_table(path_);
    output_.document["table"] = path_.string();
    output_.line("{}: {} rows", path_.string(), table_.rows.size());
  }

 private:
  void tune_item(TunedProblem& problem) {
    std::size_t tried = 0;
    try {
      output_.step("tuning {}", problem.item.label);
      problem.result = tuned(problem.item, [&](const TuneProgress& each) {
        tried = each.timed + each.failed;
        show_progress(output_, problem.item.label, each);
      });
    } catch (const Error& error) {
      // In a sweep the other problems go on if only this one fails, not the device. A problem that
      // no kernel of this GPU can do is no failure.
      const bool impossible = error.kind() == ErrorKind::infeasible;
      const bool own = impossible || (error.kind() == ErrorKind::device && tried > 0);
      if (!own || work_.items.size() == 1) throw;
      problem.why = error.what();
      if (!impossible) output_.exit_code = error.exit_code();
      return;
    }
    if (!path_.empty()) table_ = put_row(path_, problem.result.row);
  }

  TuneResult tuned(const WorkItem& item, const std::function<void(const TuneProgress&)>& progress) {
    journal_ = nullptr;
    TuneSource source =
        make_evaluator(options_.timing, options_.replay, item.problem, gpu_, *backend_);
    TuneOptions& tuning = source.tuning;
    const std::string key = tuned_key(item.problem, gpu_.name, tuning.policy.codes);
    tuning.strategy = enum_of<StrategyName>(options_.strategy);
    tuning.budget_s = read_seconds(options_.budget, "--budget");
    tuning.most = options_.most;
    tuning.rounds = tuning.policy.rounds = options_.rounds;
    tuning.progress = progress;
    if (const TunedRow* row = find_row(table_, key)) {
      if (row->policy.grade() > tuning.policy.grade()) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: holds a row of {} for {}, which times of {} do not "
                                "replace; name another table by --out",
                                path_.string(), gpu_.name, item.label,
                                tuning.policy.of_gpu() ? "shared codebooks" : "a CPU"));
      }
      tuning.incumbent = row->plan;
    }
    const std::unique_ptr<JournaledEvaluator> journal = open_journal(source, item, key);
    if (journal) tuning.incumbent = journal->incumbent();
    if (tuning.long_calls > 0) note_host(output_, item.label);
    return tune(item.problem, gpu_, journal ? *journal : *source.evaluator, tuning);
  }

  // Null where there is no place for one.
  std::unique_ptr<JournaledEvaluator> open_journal(const TuneSource& source, const WorkItem& item,
                                                   const std::string& key) {
    std::filesystem::path path = options_.journal;
    if (path.empty() && !path_.empty()) path = item_journal(path_.parent_path(), item.label, key);
    if (path.empty()) return nullptr;
    const Json header = journal_header(item.problem, gpu_, source.tuning.policy,
                                       source.tuning.environment, source.code);
    auto journal = std::make_unique<JournaledEvaluator>(*source.evaluator, path, header,
                                                        source.tuning.incumbent, options_.restart);
    journal_ = {{"path", path.string()}, {"resumed", journal->recorded()}};
    if (journal->recorded() > 0) {
      output_.note("{}: goes on from {} measurements of {}", item.label, journal->recorded(),
                   path.string());
    }
    return journal;
  }

  NewFolders folders_;
  TuneArguments options_;
  Work work_;
  Output& output_;
  std::vector<std::size_t> items_;
  std::unique_ptr<Backend> backend_;
  GpuSpec gpu_;
  std::filesystem::path path_;  // of the table; empty for none
  Json journal_;                // of the present problem: path, and answers it held
  TunedTable table_;
  TunedSweep sweep_;
};

void run(const TuneArguments& options, Output& output) {
  read_seconds(options.budget, "--budget");
  if (!options.out.empty()) require_place("tune", "--out", options.out);
  if (!options.journal.empty()) require_place("tune", "--journal", options.journal, false);
  TuneCommand(options, read_work(options.work), output).run();
}

}  // namespace

void add_tune(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<TuneArguments>(
      app, output, "tune",
      "Search the fastest plan of each problem on a device, and write a tuned table", run);
  add_examples(*command, "vqgen tune examples/configs/tinycode-layer.json --budget 60s",
               "vqgen tune llama-3-8b --shard auto --out out/tables.jsonl");
  command
      ->add_option("work", options->work,
                   "A config.json, a sweep file, or a shipped sweep such as llama-3-8b")
      ->required();
  command
      ->add_option("--budget", options->budget,
                   "Measuring time per problem, finals included: 90, 60s, 1.5m, 2h")
      ->capture_default_str();
  command
      ->add_option("--search", options->strategy,
                   "How to choose candidates; model: the cost model, corrected by measurements")
      ->capture_default_str()
      ->check(CLI::IsMember(enum_names<StrategyName>));
  command->add_option("--rounds", options->rounds, "Rounds of the finals")
      ->capture_default_str()
      ->check(whole_number(1, 1000));
  command->add_option("--max-candidates", options->most, "Candidates at most; 0 for no bound")
      ->capture_default_str()
      ->check(whole_number(0, kMostPlans));
  command->add_option("--out", options->out,
                      "The tuned table to update [the user's own for the GPU; none for the host]");
  command->add_option("--journal", options->journal, "The journal to resume [beside the table]");
  command->add_flag(
      "--resume,!--restart", [options](std::int64_t count) { options->restart = count < 0; },
      "Resume the journals, or start again [resume]");
  command->add_option("--shard", options->shard,
                      "Part I/N of the sweep, I from 0; auto: as the launcher says");
  command->add_option(
      "--replay", options->replay,
      "Take times from a file of vqgen dev space --sample 0 --json instead of a device");
  options->timing.codes.clear();  // the config's access_counts
  add_timing_options(*command, options->timing);
  command->get_option("--replay")->excludes(command->get_option("--backend"));
  command->get_option("--code-distribution")
      ->default_str("the config's access counts, else uniform");
  command->add_flag("--json", output.json, "One JSON document on stdout, with all trials");
}

}  // namespace vqgen::cli

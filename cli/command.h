// The common part of subcommands: how they report, and how they find the outside world.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/json/json.h"
#include "core/problem/config.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/cache/artifact_cache.h"
#include "runtime/environment.h"

namespace vqgen::cli {

// Replaces each control character but those in `kept` by a space (line breaks, terminal escapes in
// ASCII and C1, direction marks), and each byte that is no UTF-8 by a question mark.
std::string printable(std::string_view text, std::string_view kept);
// printable() with none kept.
std::string one_line(std::string_view text);
// One line of a readable length, with its beginning and end if it is cut.
std::string message_line(std::string_view text);
// Replaces some characters by texts.
std::string replaced(const std::string& text, const std::map<char, std::string>& others);
// The first few of the names, and how many more.
std::string some_of(const std::vector<std::string>& names);
// Two digits behind the point, or as many; "-" of none.
std::string ratio_text(const std::optional<double>& ratio, int digits = 2);
// null of none.
template <class Value>
Json json_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}
// The value of that name; `otherwise` where none has it.
template <class E>
E enum_of(std::string_view name, E otherwise = {}) {
  const auto& names = enum_names<E>;
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? otherwise : static_cast<E>(found - names.begin());
}
// Text and a line break. A stream that takes no more is no reason to stop: finish() tells of it.
void print_line(std::FILE* stream, const std::string& text);

// Progress in the last line of a terminal: work of more than two seconds shows its name and its age
// or progress. One thread draws, each time by one write, and exists only while there is something
// to say. No progress if stderr is no terminal. Thread-safe but for begin() and end().
class Progress {
 public:
  Progress();
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A step of unknown length begins, and the one before it ends.
  void begin(std::string step);
  // Sets the step's progress, 0..1, and its present label.
  void show(double fraction, std::string label);
  // Takes the line away, for others to write. It comes back with the next draw.
  void clear();
  // No step any more; the line is gone.
  void end() {
    drawer_ = {};
    clear();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw_until(const std::stop_token& end);
  std::string line(Clock::time_point now) const;

  const bool terminal_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread drawer_;
  bool drawn_ = false;  // if the line is on the terminal
  Clock::time_point begun_;
  std::string label_;
  std::optional<double> fraction_;
};

// Collects what a subcommand has to say: text for people, or one JSON document with --json.
class Output {
 public:
  bool json = false;
  Json document = Json::object();
  int exit_code = 0;

  // A line on stdout at once, as logs are read while they grow; nothing with --json.
  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) const {
    if (json) return;
    progress_.clear();
    print_line(stdout, printable(fmt::format(text, std::forward<Args>(args)...), "\n"));
    std::fflush(stdout);
  }
  // A message_line() on stderr, always.
  template <class... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    progress_.clear();
    print_line(stderr, message_line(fmt::format(text, std::forward<Args>(args)...)));
  }
  // Names the work from here on until the next step; shown on a terminal if it takes long. Silent
  // with --json.
  template <class... Args>
  void step(fmt::format_string<Args...> text, Args&&... args) const {
    if (!json) progress_.begin(fmt::format(text, std::forward<Args>(args)...));
  }
  // Sets the step's progress, 0..1, and its present label. Thread-safe.
  void show(double fraction, const std::string& label) const { progress_.show(fraction, label); }
  // Prints the document with --json. Called once, by main. False where stdout took less than all.
  bool finish() const;

 private:
  mutable Progress progress_;
};

// Option values in digits alone, within bounds: CLI11's own readers wrap -1 around to the largest
// number, and take nan for one.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
CLI::Validator decimal(double least, double most);
// Largest seed: JSON numbers, as in tables, hold it exactly.
inline constexpr std::uint64_t kMostSeed = (std::uint64_t{1} << 53) - 1;
void add_json_flag(CLI::App& command, Output& output);
// The examples in a command's help: command lines that run in the root of a checkout.
void add_examples(CLI::App& command, const std::string& first, const std::string& second);
// Returns the command lines of add_examples(); empty if there are none.
std::vector<std::string> examples_of(const CLI::App& command);
// Once all subcommands have declared their options: gives those that are shown --json, and refuses
// empty values, since of a shell's unset variable they would count as no option.
void finish_options(CLI::App& app, Output& output);

// Error(bad_input) unless a file can be written there: found before the work, not after. `option`
// is the flag of `command` that names it. What is not appended to is replaced, as publish_file()
// does.
void require_place(const std::string& command, const std::string& option,
                   const std::filesystem::path& out, bool replaced = true);

// The environment variables that vqgen reads, all of them; documented in
// docs/reference/environment.md.
struct Environment {
  CacheEnvironment cache;
  TunedEnvironment tuned;
  CudaOptions cuda;      // VQGEN_NVRTC, VQGEN_NVRTC_HELPER, VQGEN_DEPENDENT_LAUNCHES
  std::string compiler;  // VQGEN_CXX: the host backend's compiler
};
Environment read_environment();

std::unique_ptr<Backend> make_cuda(const Environment& environment);
std::unique_ptr<Backend> make_host(const Environment& environment, bool check_races = false);
// The kernel cache, in memory alone where the environment gives it no place. `explain_misses` as in
// CacheOptions.
std::unique_ptr<ArtifactCache> make_cache(const Environment& environment,
                                          bool explain_misses = false);
// The tuned tables that plans are looked up in. Error(bad_input) where one of the user's is
// damaged.
std::shared_ptr<const TunedTables> make_tables(const Environment& environment);
// Reports faults of the cache on stderr; silent if there are none.
void note_warning(const ArtifactCache& cache, const Output& output);

// A GPU and why it was chosen: the flag, else the config's, else the device of a backend for CUDA,
// which is not opened unless it comes to that, else default_gpu().
struct GpuChoice {
  GpuSpec spec;
  std::string reason;
};
GpuChoice choose_gpu(const std::string& flag, const Config& config, const Backend& backend);

// A subcommand and its options, to be declared; `run` is called with them. One that is below
// another begins with --json.
template <class Options>
std::pair<CLI::App*, std::shared_ptr<Options>> add_command(
    CLI::App& app, Output& output, const char* name, const char* what,
    void (*run)(const std::type_identity_t<Options>& options, Output& output)) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(name, what);
  if (app.get_parent() != nullptr) add_json_flag(*command, output);
  command->callback([options, run, &output] { run(*options, output); });
  return {command, options};
}

// The subcommands: each declares its options and runs in its callback.
using AddCommand = void(CLI::App& app, Output& output);
AddCommand add_cache, add_cache_explain, add_compile, add_completion, add_db, add_dev, add_doctor,
    add_explain, add_export, add_help, add_import, add_inspect, add_list, add_man, add_measure,
    add_count_accesses, add_quantize, add_reorder, add_repack, add_run, add_tune, add_tune_worker,
    add_version;

}  // namespace vqgen::cli

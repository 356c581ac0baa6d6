// What subcommands share: how they report, and the outside world as they find it.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/progress.h"
#include "core/gpu/gpu_spec.h"
#include "core/json/json.h"
#include "core/problem/config.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"
#include "runtime/tuned_places.h"

namespace vqgen::cli {

// The text with a space for each control character, such as a line break in a field's name.
std::string one_line(std::string text);
// Text and a line break. A stream that takes no more is no reason to stop: finish() tells of it.
void print_line(std::FILE* stream, const std::string& text);

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
    print_line(stdout, fmt::format(text, std::forward<Args>(args)...));
    std::fflush(stdout);
  }
  // A line on stderr, always: what names and files bring in cannot break it.
  template <class... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    progress_.clear();
    print_line(stderr, one_line(fmt::format(text, std::forward<Args>(args)...)));
  }
  // What is being done from here on, until the next step: shown on a terminal where it takes long.
  // Nothing with --json.
  template <class... Args>
  void step(fmt::format_string<Args...> text, Args&&... args) const {
    if (!json) progress_.begin(fmt::format(text, std::forward<Args>(args)...));
  }
  // How far the step is, 0..1, and what to call it now. Thread-safe.
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
// What JSON numbers hold exactly, as tables store seeds.
inline constexpr std::uint64_t kMostSeed = (std::uint64_t{1} << 53) - 1;
// Refuses empty values of all options of `app` and its subcommands: of a shell's unset variable
// they would count as no option.
void refuse_empty_values(CLI::App& app);

// Error(bad_input) unless a file can be written there: found before the work, not after. `option`
// is the flag of `command` that names it.
void require_place(const std::string& command, const std::string& option,
                   const std::filesystem::path& out);

// The environment variables that vqgen reads, all of them; documented in docs/environment.md.
struct Environment {
  CacheEnvironment cache;
  TunedEnvironment tuned;
  std::string nvrtc;               // VQGEN_NVRTC: libnvrtc or its folder
  std::string nvrtc_helper;        // VQGEN_NVRTC_HELPER: vqgen-nvrtc, in which it runs
  std::string compiler;            // VQGEN_CXX: the host backend's compiler
  bool dependent_launches = true;  // VQGEN_DEPENDENT_LAUNCHES
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
// What does not work of the cache, on stderr; nothing while all is well.
void note_warning(const ArtifactCache& cache, const Output& output);

// A GPU and why it was chosen: the flag, else the config's, else the device of a backend for CUDA,
// which is not opened unless it comes to that, else default_gpu().
struct GpuChoice {
  GpuSpec spec;
  std::string reason;
};
GpuChoice choose_gpu(const std::string& flag, const Config& config, const Backend& backend);

// Each subcommand declares its options and runs in its callback.
#define COMMAND(name) void add_##name(CLI::App& app, Output& output);
#include "cli/commands.def"
#undef COMMAND

}  // namespace vqgen::cli

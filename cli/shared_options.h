// Options that subcommands share, to choose plans, place codebooks and time plans on a device; and
// how plans and measurements are reported.
#pragma once

#include <span>

#include "cli/command.h"
#include "runtime/code_distribution.h"
#include "runtime/measure.h"
#include "runtime/prepare.h"

namespace vqgen::cli {

inline constexpr const char* kTuned = "tuned";  // tables first, then the default chooser

// A config whose plan is asked for, and how: --gpu, --access-counts, --placement, --planner.
struct PlanRequest {
  std::string config;
  std::string gpu = {};
  std::string access_counts = {};
  std::string placement = {};
  std::string chooser = kTuned;
};

void add_plan_options(CLI::App& command, PlanRequest& request);
void add_planner_option(CLI::App& command, std::string& chooser);

// A request after evaluation.
struct PlanSetting {
  Environment environment;
  Config config;
  std::shared_ptr<const TunedTables> tables = {};  // null where --planner names a chooser
  PlanOptions plan = {};                           // points to the tables
  std::unique_ptr<Backend> backend = {};           // for CUDA
  GpuChoice gpu = {};
};
// The flags go over the config's own access_counts. Error(bad_input) for a strategy without any.
PlanSetting plan_setting(const PlanRequest& request);
// Reports "gpu NVIDIA H200 (sm_90): named by --gpu", and the same as "gpu" and "gpu_reason" in
// JSON.
void report_gpu(const GpuChoice& gpu, Output& output);

// "plan from bucket: ...", and the same as "plan_from".
void report_source(const PlanSource& source, Output& output);

// [{"operand", "placement", "reasons"}]
Json placement_json(const std::vector<OperandPlacement>& placements);

inline constexpr std::uint64_t kMostPlans = 1'000'000'000;  // that an option may ask for

struct TimingOptions {
  std::string backend = {};
  std::string gpu = {};
  std::string codes = "uniform";
  std::uint64_t seed = 1;
  bool shared_codebooks = false;
  int active_experts = 0;  // 0: as many as can have rows
};

void add_timing_options(CLI::App& command, TimingOptions& options);

// Option of the number of MoE experts that have rows.
CLI::Option* add_active_experts(CLI::App& command, int& touched);
// Error(bad_input) where the problem has no experts, or fewer that can have rows.
void require_active_experts(int touched, const Problem& problem);

// Codebooks of the host backend are warm: it has one cache level.
CodebookCaching codebooks_of(const TimingOptions& options);

// How plans of the problem are timed, by the options.
MeasureOptions measure_options(const TimingOptions& options, const Problem& problem);

std::unique_ptr<Backend> make_backend(const TimingOptions& options);

// Says on stderr what is to be expected of times of `what` on the host backend.
void note_host(const Output& output, const std::string& what);

// The GPU to plan for, which the document then names.
GpuSpec planned_gpu(const TimingOptions& options, const Config& first, const Backend& backend,
                    Output& output);

// The exit code of a config none of whose plans was timed, and a line on stderr: what the first
// that is not timed failed by. Nothing where one was timed.
void note_untimed(const std::string& config, std::span<const Measurement> measured, Output& output);

// The measurement as in a journal, but with its plan as an object of fields.
Json measurement_json(const Measurement& m);

}  // namespace vqgen::cli

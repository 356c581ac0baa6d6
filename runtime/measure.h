// Compiles, verifies and times plans of one problem on a device, under equal conditions. Each plan
// is verified between guards and on poisoned memory, so that none passes on what another left.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "runtime/device_call.h"
#include "runtime/rotation.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// wrong: the result differs from the reference, or the kernel wrote outside of its outputs. hung
// and crashed: its process had to be ended, or ended itself; only a search in a worker process
// finds these.
enum class Outcome { timed, infeasible, compile_failed, wrong, hung, crashed };
template <>
inline constexpr auto enum_names<Outcome> =
    std::array{"timed", "infeasible", "compile_failed", "wrong", "hung", "crashed"};

// True if a device can have taken `us` microseconds. Other code must not compare times with NaN, or
// divide by 0.
inline bool is_time(double us) { return std::isfinite(us) && us > 0; }

// The outcome of one plan. Figures are valid as far as the outcome got.
struct Measurement {
  Plan plan;
  Outcome outcome = Outcome::timed;
  std::string why;     // if the outcome is not timed
  double time_us = 0;  // of one call, the median of the replays
  double low_us = 0;   // quartiles of the replays
  double high_us = 0;
  double rel_err = 0;             // against the double-precision reference; may be infinite
  int registers = 0;              // of the first entry
  int blocks_per_sm = 0;          // of the first entry, if the device tells; else 0
  int spill_bytes = 0;            // of all entries
  std::int64_t shared_bytes = 0;  // of the first entry
};

struct MeasureOptions {
  unsigned compilers = 0;  // compiler threads; 0 takes one per core
  int replays = 9;
  double warm_up_ms = 0;  // of a plan's own calls before they are timed
  bool rotate = true;     // calls take turns on cold places; else all use one place
  CodebookCaching codebooks = CodebookCaching::rotated;  // of time_us() and eager_us() by default
  HardInput input;
  // Called from the measuring thread after each plan.
  std::function<void(std::size_t done, std::size_t of)> progress;
};

// The options cut to sizes that a CPU can do, where a call takes up to seconds: one run of one
// call, on one place.
MeasureOptions on_host(MeasureOptions options);

// A plan on its way to its measurement.
struct CompiledPlan {
  Measurement measurement;                         // timed unless something went wrong
  KernelSource source = {};                        // set if the plan is feasible
  std::optional<Artifact> artifact = {};           // set if it was compiled
  std::unique_ptr<LoadedKernel> kernel = nullptr;  // set if it was loaded
};

// Holds one problem's data and reference; measures any number of plans. Not thread-safe, except for
// the functions that say so.
class Measurer {
 public:
  // Draws hard input, computes the reference, and uploads codes and codebooks to as many places as
  // rotation() says. Throws Error(device) if the device's memory does not hold them.
  Measurer(Backend& backend, const GpuSpec& gpu, const Problem& problem, MeasureOptions options);

  // Returns measurements in the order of `plans`. A failure of a plan is its measurement's outcome
  // and throws nothing, except that a faulting launch throws Error(device).
  std::vector<Measurement> measure(const std::vector<Plan>& plans);

  // The steps of measure(), for callers that supervise each.
  //
  // Checks and compiles a plan. Thread-safe.
  CompiledPlan compile(const Plan& plan) const;
  // Loads a compiled plan, launches it on poisoned memory, and judges it: wrong if it differs from
  // the reference or wrote beside its outputs and its workspace. Throws Error(device).
  void verify(CompiledPlan& candidate);
  // Microseconds per call of a verified plan, one per replay, sorted. `codebooks` overrides the
  // options. Throws Error(device).
  std::vector<double> time_us(CompiledPlan& candidate,
                              std::optional<CodebookCaching> codebooks = std::nullopt);
  // Microseconds per call of a verified plan whose calls are launched one by one, from the first
  // until the device has finished the last; the median of the replays. Throws Error(device).
  double eager_us(CompiledPlan& candidate, CodebookCaching codebooks);
  // Uploads all data to other places, since times depend on addresses. Throws Error(device).
  void move_data();
  // Times a verified plan into its measurement.
  void time(CompiledPlan& candidate);

  // The number of compiler threads.
  int compilers() const { return static_cast<int>(options_.compilers); }

  // Bytes of codes that one call reads or writes; for attention_merge, bytes of its parts; for a
  // scalar op, bytes of the matrix that it reads.
  std::int64_t code_bytes() const { return layer_.codes; }
  // Bytes of codebooks, scales and smooth factors of one layer.
  std::int64_t codebook_bytes() const { return layer_.codebooks; }
  const Rotation& rotation() const { return rotation_; }

 private:
  // The calls that a replay times, each on the next places.
  std::vector<Launch> launches(const CompiledPlan& candidate, CodebookCaching codebooks);

  Backend& backend_;
  GpuSpec gpu_;
  Problem problem_;
  MeasureOptions options_;
  std::function<std::unique_ptr<DeviceCall>()> upload_;  // hard data of the problem
  std::function<ItemReport()> judge_;                    // judges the output of call_
  std::unique_ptr<DeviceCall> call_;
  LayerBytes layer_;
  Rotation rotation_;
  std::vector<DeviceBuffer> gaps_;  // one per move_data()
};

}  // namespace vqgen

// Plans of one problem compiled, verified and timed on a device, under equal conditions. They are
// verified between guards and on memory that is poisoned for each, so that none passes on what
// another one left.
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

// wrong: another result than the reference, or writes outside of the outputs. hung and crashed: the
// process that ran it had to be ended, or ended itself; a search in a worker process finds these.
enum class Outcome { timed, infeasible, compile_failed, wrong, hung, crashed };
template <>
inline constexpr auto enum_names<Outcome> =
    std::array{"timed", "infeasible", "compile_failed", "wrong", "hung", "crashed"};

// Whether a device can have taken so long: nothing else may compare times with NaN, or divide by 0.
inline bool is_time(double us) { return std::isfinite(us) && us > 0; }

// What became of one plan. Figures hold as far as the outcome got.
struct Measurement {
  Plan plan;
  Outcome outcome = Outcome::timed;
  std::string why;     // where the outcome is not timed
  double time_us = 0;  // of one call, the median of the replays
  double low_us = 0;   // quartiles of the replays
  double high_us = 0;
  double rel_err = 0;             // against the double-precision reference; may be infinite
  int registers = 0;              // of the first entry
  int blocks_per_sm = 0;          // of the first entry, as the device says; 0 where it does not
  int spill_bytes = 0;            // of all entries
  std::int64_t shared_bytes = 0;  // of the first entry
};

struct MeasureOptions {
  unsigned compilers = 0;  // threads that compile; 0 takes one a core
  int replays = 9;
  double warm_up_ms = 0;  // of a plan's own calls before they are timed
  bool rotate = true;     // calls take turns on places that no cache holds; else all use the same
  CodebookCaching codebooks =
      CodebookCaching::rotated;  // of time_us() and eager_us() unless they are told
  HardInput input;
  // Called from the measuring thread after each plan.
  std::function<void(std::size_t done, std::size_t of)> progress;
};

// The same in sizes that a CPU can do, where a call takes up to seconds: one run of one call, on
// one place.
MeasureOptions on_host(MeasureOptions options);

// A plan on its way to its measurement.
struct CompiledPlan {
  Measurement measurement;                         // timed as long as nothing went wrong
  KernelSource source = {};                        // where the plan is feasible
  std::optional<Artifact> artifact = {};           // where it was compiled
  std::unique_ptr<LoadedKernel> kernel = nullptr;  // where it was loaded
};

// Holds one problem's data and reference; measures any number of plans. Not thread-safe but for
// what says so.
class Measurer {
 public:
  // Draws hard input, computes the reference, uploads: codes and codebooks to as many places as
  // rotation() says. Error(device) where the device's memory does not hold them.
  Measurer(Backend& backend, const GpuSpec& gpu, const Problem& problem, MeasureOptions options);

  // In the order of `plans`. What one plan does wrong is its measurement's outcome and no error,
  // but for a fault of its launch: Error(device).
  std::vector<Measurement> measure(const std::vector<Plan>& plans);

  // The steps of measure(), for those who look after each.
  //
  // Checked and compiled. Thread-safe.
  CompiledPlan compile(const Plan& plan) const;
  // A compiled one loaded, launched on poisoned memory, and judged: wrong where it differs from the
  // reference or wrote to anything but its outputs and its workspace. Error(device).
  void verify(CompiledPlan& candidate);
  // Microseconds of one call of a verified one, a replay each, sorted. Error(device).
  // Codebooks are as the options say unless told.
  std::vector<double> time_us(CompiledPlan& candidate,
                              std::optional<CodebookCaching> codebooks = std::nullopt);
  // Microseconds of one call of a verified one whose calls are launched one by one, from the first
  // until the device is done with the last; the median of the replays. Error(device).
  double eager_us(CompiledPlan& candidate, CodebookCaching codebooks);
  // Uploads all data anew, to other places: times depend on where buffers stand. Error(device).
  void move_data();
  // Into its measurement.
  void time(CompiledPlan& candidate);

  // Threads that are to compile.
  int compilers() const { return static_cast<int>(options_.compilers); }

  // Bytes of codes that one call reads, or writes; of attention_merge, of its parts;
  // of a scalar op, of the matrix that it reads.
  std::int64_t code_bytes() const { return layer_.codes; }
  // Bytes of codebooks, scales and smooth factors of one layer.
  std::int64_t codebook_bytes() const { return layer_.codebooks; }
  const Rotation& rotation() const { return rotation_; }

 private:
  // Of the calls that a replay times, each on the next places.
  std::vector<Launch> launches(const CompiledPlan& candidate, CodebookCaching codebooks);

  Backend& backend_;
  GpuSpec gpu_;
  Problem problem_;
  MeasureOptions options_;
  std::function<std::unique_ptr<DeviceCall>()> upload_;  // hard data of the problem
  std::function<ItemReport()> judge_;                    // what call_ left
  std::unique_ptr<DeviceCall> call_;
  LayerBytes layer_;
  Rotation rotation_;
  std::vector<DeviceBuffer> gaps_;  // one for each time that data moved
};

}  // namespace vqgen

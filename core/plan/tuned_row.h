// A tuned row: the fastest plan that was measured for a problem on a class of device, and all that
// is needed to judge and repeat the measurement. A line of a tuned table (docs/guides/tuning.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json/json.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// MeasurePolicy::l2: what timed calls rotate through, in copies that exceed L2. kL2CodesCold
// flatters large codebooks.
inline constexpr const char* kL2Cold = "all_cold";   // codes and codebooks
inline constexpr const char* kL2CodesCold = "cold";  // codes; all read the same codebooks
inline constexpr const char* kL2Warm = "warm";       // nothing

// The S of codes "zipf:S", above 0 and at most kMostSkew, where all but one code in a thousand is
// the first; nullopt of all other texts.
inline constexpr double kMostSkew = 10;
std::optional<double> zipf_skew(std::string_view codes);
// True if the text is valid for MeasurePolicy::codes: a distribution as vqgen writes it.
bool names_codes(std::string_view codes);

// How times were taken. A VQ kernel's time depends on the distribution of its codes, so `codes` is
// part of a row's key.
struct MeasurePolicy {
  std::string codes = "uniform";  // uniform, zipf:S (weight of the r-th: r^-S), profile:DIGEST of
                                  // 12 hex digits
  std::string l2 = kL2Cold;
  std::string timer = "graph";  // graph: replays of a CUDA graph; cpu: the host backend's clock
  int rounds = 0;               // rounds of the finals, each with all finalists in turn
  std::uint64_t seed = 1;       // seed of the input

  // True for times taken on a GPU.
  bool of_gpu() const { return timer == "graph"; }
  // Times of a lower grade take the place of none of a higher one: 2 for a GPU's with all cold, 1
  // for its others, 0 for a CPU's.
  int grade() const { return of_gpu() ? 1 + (l2 == kL2Cold) : 0; }

  static constexpr auto fields() {
    using P = MeasurePolicy;
    return std::make_tuple(
        field("codes", &P::codes, required(), "distribution of the codes"),
        field("l2", &P::l2, required(),
              "what each call reads another copy of: all_cold, codes and codebooks; cold, codes; "
              "warm: none"),
        field("timer", &P::timer, required(), "graph or cpu"),
        field("rounds", &P::rounds, required(), "rounds of the finals, each of all finalists"),
        field("seed", &P::seed, required(0, 9007199254740991.0), "seed of the input"));
  }
  bool operator==(const MeasurePolicy&) const = default;
};

// What else a time may depend on besides the device class. It is for people and lint and part of no
// key.
struct TuneEnvironment {
  std::string device;    // the driver's name of the device
  std::string driver;    // its version
  std::string compiler;  // CompilerIdentity::name
  std::string vqgen;     // version

  static constexpr auto fields() {
    using E = TuneEnvironment;
    return std::make_tuple(field("device", &E::device, required(), "as the driver names it"),
                           field("driver", &E::driver, required(), "its version"),
                           field("compiler", &E::compiler, required(), "name and version"),
                           field("vqgen", &E::vqgen, required(), "version"));
  }
  bool operator==(const TuneEnvironment&) const = default;
};

// Times are medians over the finals' rounds, in microseconds of one call.
struct TunedRow {
  Problem problem;
  std::string gpu;  // device class: GpuSpec::name
  MeasurePolicy policy = {};
  TuneEnvironment environment = {};
  Plan plan = {};  // the winner
  double time_us = 0;
  double low_us = 0;  // quartiles
  double high_us = 0;
  Plan default_plan = {};  // what is chosen without a table
  double default_us = 0;
  Plan runner_up = {};  // the winner again where nothing else was timed
  double runner_up_us = 0;
  double noise = 0;    // relative: differences below it are none
  double rel_err = 0;  // error of the winner against the double-precision reference
  int candidates = 0;  // that were timed
};

// Canonical, a line: keys sorted, plans by name.
Json to_json(const TunedRow& row);
// Error(bad_input) for unknown and missing fields, times that are not above 0 or not finite,
// quartiles out of order, a plan of another op, a problem that validate() refuses.
TunedRow read_tuned_row(const JsonCursor& cursor);

// Key by which rows are looked up and merged: device class, problem and codes, as canonical text.
std::string tuned_key(const TunedRow& row);
std::string tuned_key(const Problem& problem, const std::string& gpu, const std::string& codes);

}  // namespace vqgen

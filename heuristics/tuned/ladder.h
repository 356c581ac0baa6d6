// A config's plan from tuned tables: that of a row of this problem on this device class, if check()
// accepts it and it has the config's fixed fields. Rows of other sizes, element types or device
// classes serve nobody: on an H200 the plans that they gave were no faster than the cost model's
// own (bench/measurements/borrowed-rows.csv).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/problem/config.h"
#include "heuristics/tuned/tables.h"

namespace vqgen {

// Where a plan comes from. override: the config's own fields, the rest chosen around them. exact to
// alike: a row of a tuned table, for
//
//   exact  this problem, device class and codes
//   codes  other codes
//   alike  other pages, for kv_append another room of the cache, which change no plan; for gemv and
//          gemm another epilogue, with which the plan of the same product is the best known
//
// model and rules: the chooser.
enum class Rung { override, exact, codes, alike, model, rules };
template <>
inline constexpr auto enum_names<Rung> =
    std::array{"override", "exact", "codes", "alike", "model", "rules"};

struct Neighbour {
  Rung rung = Rung::exact;
  FoundRow found = {};
  TunedRow row = {};         // read when it is judged
  std::string differs = {};  // "page_tokens 0 instead of 16; codes zipf:1 instead of uniform"
  std::string refused = {};  // why it is not taken
};

struct LadderOptions {
  std::string codes = "uniform";  // MeasurePolicy::codes
  bool all = false;               // look at all rows, not until one serves
};

struct LadderAnswer {
  std::optional<Neighbour> taken;
  std::vector<Neighbour> passed;  // that were not, in their order, each with why
};

// Error(bad_input) for fields of the plan that the op lacks, and of a damaged table.
LadderAnswer look_up(const TunedTables& tables, const Config& config, const GpuSpec& gpu,
                     const LadderOptions& options = {});

// A plan's origin for people: "h200.jsonl:7: ..., 12.3 us against 15.0 us of ...".
struct PlanSource {
  Rung rung = Rung::model;
  std::string why = {};
};
PlanSource source_of(const Neighbour& taken);

// {"rung": ..., "why": ...}
Json to_json(const PlanSource& source);

}  // namespace vqgen

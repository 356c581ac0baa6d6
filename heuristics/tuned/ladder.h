// The ladder: a config's plan from tuned tables, of the nearest row that may be borrowed.
//
// A row serves where check() accepts its plan for the problem and the GPU at hand, and where the
// plan has all fields that the config fixes. A row of another size or device class must also not be
// expected, by the cost model, to take more than kBorrowMargin times what the model's own choice
// takes. Where the model knows no cost of the plan, only rung bucket is believed.
//
// A plan is borrowed whole, as it was measured somewhere, splits and all: they are absolute
// numbers, and at another size the same splits are shorter or longer pieces and as many blocks a
// sequence or output. Up to twice or half the tokens that is what a search would take as well;
// beyond, it is the cost model that sees a grid that no longer fills the GPU. Splits scaled to the
// new size would be a plan that nobody has measured, which is what the model's own choice is for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/hotness/hotness_profile.h"
#include "core/problem/config.h"
#include "heuristics/tuned/neighbours.h"

namespace vqgen {

// The cost model's median error (docs/notebook/choosing.md): differences below it say nothing
// against a plan that has been measured to be the fastest nearby.
inline constexpr double kBorrowMargin = 1.12;

// Rows of other sizes that are tried: of one place in a dense table all are refused for one reason.
inline constexpr std::size_t kMostTried = 8;

struct LadderOptions {
  std::string codes = "uniform";                  // MeasurePolicy::codes
  std::span<const HotnessProfile> profiles = {};  // of match_hotness(), for the cost model
  bool all = false;                               // look at all neighbours, not until one serves
};

struct LadderAnswer {
  std::optional<Neighbour> taken;
  std::vector<Neighbour> passed;  // that were not, in their order, each with why
  std::optional<Plan> own;        // the cost model's choice, where it was needed
};

// Error(bad_input) for fields of the plan that the op lacks, and of a damaged table.
LadderAnswer look_up(const TunedTables& tables, const Config& config, const GpuSpec& gpu,
                     const LadderOptions& options = {});

// Where a plan comes from, for people: "h200.jsonl:7: ..., 12.3 us against 15.0 us of ...".
struct PlanSource {
  Rung rung = Rung::model;
  std::string why = {};
};
PlanSource source_of(const Neighbour& taken);

// {"rung": ..., "why": ...}
Json to_json(const PlanSource& source);

}  // namespace vqgen

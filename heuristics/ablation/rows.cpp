#include "heuristics/ablation/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "heuristics/ablation/shapes.h"
#include "heuristics/fusion/linear_fusion.h"

namespace vqgen {
namespace {

constexpr std::array kAllFusions{LinearFusion::permute, LinearFusion::registers,
                                 LinearFusion::shared};
constexpr std::array kForcedRegisters{1, 8};

std::vector<PlacementRule> rules_of(std::initializer_list<Near> near) {
  std::vector<PlacementRule> rules;
  for (const Near each : near) rules.push_back({each});
  return rules;
}

std::vector<PlacementRule> with_registers(const std::vector<PlacementRule>& rules) {
  std::vector<PlacementRule> all;
  for (const int registers : kForcedRegisters) {
    for (const PlacementRule& rule : rules) all.push_back({rule.near, registers});
  }
  return all;
}

std::vector<PlacementRule> joined(std::vector<PlacementRule> a,
                                  const std::vector<PlacementRule>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Where placing a shape takes long, so many of them say whether a rule can be had.
constexpr std::size_t kFewShapes = 64;

}  // namespace

AblationSpace::AblationSpace(const Problem& problem, const GpuSpec& gpu,
                             std::vector<HotnessProfile> profiles)
    : problem_(problem), gpu_(gpu), profiles_(std::move(profiles)) {
  if (std::holds_alternative<KvAppend>(problem)) {
    throw Error(
        ErrorKind::infeasible,
        "ablate: kv_append has one dataflow and places no codebooks, so there is nothing to "
        "leave out; use vqgen measure --space");
  }
  shapes_ = ablation_shapes(problem, gpu);
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  std::string why;
  const AblationRow lanes{"", "", Dataflows::lanes};
  const bool lanes_fit = fits(lanes, {Near::all}, why);
  const bool any_fits = lanes_fit || fits({}, {Near::all}, why);
  const std::string instead = "whole codebooks do not fit a block; as many entries as fit: " + why;
  const auto whole = [](bool fit) { return fit ? Near::all : Near::most; };
  const auto note = [&](bool fit) { return fit ? "" : instead; };
  const std::vector<LinearFusion> none{LinearFusion::permute};
  const std::vector<LinearFusion> all(kAllFusions.begin(), kAllFusions.end());
  const auto parts = rules_of({Near::slack, Near::half, Near::keys, Near::values});
  const auto ends = rules_of({whole(any_fits), Near::none});
  const auto once = joined(ends, joined(parts, with_registers(ends)));
  const auto copies =
      rules_of({Near::lane_copies, Near::half_copies, Near::value_copies, Near::weighed});

  AblationRow far{"GC", "all entries in global memory, dataflow lanes", Dataflows::lanes,
                  rules_of({Near::none}), none};
  far.adds = false;
  add_row(std::move(far));
  add_row({"SC", "all entries in shared memory, dataflow lanes", Dataflows::lanes,
           rules_of({whole(lanes_fit)}), none, note(lanes_fit)});
  add_row({"+ boundary", "a part of the entries in shared memory, the rest in global memory",
           Dataflows::lanes, parts, none});
  add_row({"+ registers", "the hottest 1 or 8 entries in registers", Dataflows::lanes,
           with_registers(joined(rules_of({whole(lanes_fit), Near::none}), parts)), none});
  add_row({"+ dataflow",
           attention ? "another dataflow than lanes"
                     : "another dataflow than lanes, without fusion: through shared memory",
           Dataflows::others,
           once,
           {LinearFusion::shared}});
  AblationRow fusion{"+ fusion", "the paper's fusion: by shuffles where they are few",
                     Dataflows::fragments, once};
  AblationRow permutation{"+ permutation", "columns in the order in which nothing moves",
                          Dataflows::fragments, once, none};
  if (attention) {
    fusion.refused = permutation.refused =
        "attention_decode has no fusion to choose: its dataflow fragments takes entries as "
        "operands as they come";
  } else {
    fusion.fusions = {fusion_by_shuffles(as_linear(problem)->weights.vector_size)};
  }
  add_row(std::move(fusion));
  add_row(std::move(permutation));
  add_row(
      {"+ copies", "entries in shared memory with a copy a lane", Dataflows::placed, copies, all});
  for (AblationRow whole_space :
       {AblationRow{"GC*", "the whole space, all entries in global memory", Dataflows::placed,
                    rules_of({Near::none}), all},
        AblationRow{"SC*", "the whole space, all entries in shared memory once", Dataflows::placed,
                    rules_of({whole(any_fits)}), all, note(any_fits)}}) {
    whole_space.adds = false;
    add_row(std::move(whole_space));
  }
  AblationRow best{"best", "the whole space", Dataflows::any};
  best.rules = joined(joined(once, rules_of({whole(lanes_fit)})),
                      joined(with_registers(joined(rules_of({whole(lanes_fit)}), parts)), copies));
  best.fusions = all;
  best.spread = best.adds = false;
  add_row(std::move(best));
}

bool AblationSpace::obeys_dataflow(const AblationRow& row, const Plan& plan) {
  const std::string_view name = dataflow_name(plan);
  switch (row.dataflows) {
    case Dataflows::placed:
      return name != "slices";
    case Dataflows::lanes:
      return name == "lanes";
    case Dataflows::others:
      return name != "lanes";
    case Dataflows::fragments:
      return name == "fragments";
    default:
      return true;
  }
}

void AblationSpace::add_row(AblationRow row) {
  std::vector<PlacementRule> kept;
  std::string why;
  for (const PlacementRule& rule : row.rules) {
    if (!row.refused.empty() || std::find(kept.begin(), kept.end(), rule) != kept.end()) continue;
    std::string reason;
    if (fits(row, rule, reason)) {
      kept.push_back(rule);
    } else if (why.empty()) {
      why = reason;
    }
  }
  if (kept.empty() && row.refused.empty()) row.refused = why;
  row.rules = std::move(kept);
  rows_.push_back(std::move(row));
}

bool AblationSpace::fits(const AblationRow& row, const PlacementRule& rule,
                         std::string& why) const {
  std::vector<const Plan*> of;
  for (const Plan& shape : shapes_) {
    if (obeys_dataflow(row, shape)) of.push_back(&shape);
  }
  const std::size_t step = takes_long(rule) ? of.size() / kFewShapes + 1 : 1;
  for (std::size_t i = 0; i < of.size(); i += step) {
    // Without a fusion named, permute: the row asks for a dataflow alone.
    const LinearFusion fusion = row.fusions.empty() ? LinearFusion::permute : row.fusions.front();
    const Laid laid = complete(*of[i], {rule, fusion});
    if (laid.verdict.ok) return true;
    if (why.empty()) why = laid.verdict.reason;
  }
  if (why.empty()) why = "the space has no plan of the dataflow";
  return false;
}

Plan AblationSpace::shape_of(const Plan& plan) const {
  Plan shape = without_cache(plan, problem_);
  if (auto* fragments = std::get_if<LinearFragments>(&shape)) {
    fragments->fusion = LinearFusion::permute;
  }
  return shape;
}

Laid AblationSpace::complete(const Plan& shape, const Variant& variant) const {
  Plan plan = shape;
  if (auto* fragments = std::get_if<LinearFragments>(&plan)) fragments->fusion = variant.fusion;
  return lay(plan, variant.rule, problem_, gpu_, profiles_);
}

std::optional<Variant> AblationSpace::variant_of(const AblationRow& row, const Plan& plan) const {
  if (!obeys_dataflow(row, plan)) return std::nullopt;
  Variant variant;
  if (const auto* fragments = std::get_if<LinearFragments>(&plan)) {
    variant.fusion = fragments->fusion;
    if (std::find(row.fusions.begin(), row.fusions.end(), variant.fusion) == row.fusions.end()) {
      return std::nullopt;
    }
  }
  const Plan shape = shape_of(plan);
  for (const PlacementRule& rule : row.rules) {
    if (!may_follow(plan, rule, problem_)) continue;
    variant.rule = rule;
    const Laid laid = complete(shape, variant);
    if (laid.verdict.ok && laid.plan == plan) return variant;
  }
  return std::nullopt;
}

}  // namespace vqgen

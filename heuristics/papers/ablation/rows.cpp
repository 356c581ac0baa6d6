#include "heuristics/papers/ablation/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/problem/config.h"
#include "heuristics/choose.h"
#include "heuristics/papers/papers.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

std::vector<PlacementRule> with_registers(const std::vector<PlacementRule>& rules) {
  std::vector<PlacementRule> all;
  for (const int registers : {1, 8}) {
    for (const PlacementRule& rule : rules) all.push_back({rule.near, registers});
  }
  return all;
}

std::vector<PlacementRule> joined(std::vector<PlacementRule> a,
                                  const std::vector<PlacementRule>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The plan with that fusion, where it has one.
Plan with_fusion(Plan plan, LinearFusion fusion) {
  if (auto* fragments = std::get_if<LinearMma>(&plan)) fragments->fusion = fusion;
  return plan;
}

// Shapes tried to decide if a rule applies at all, when placing takes long.
constexpr std::size_t kFewShapes = 64;

// A stratum of the sample: the shapes of one dataflow, completed in one way.
struct Kind {
  Variant variant;
  std::vector<std::size_t> shapes = {};
  std::size_t offered = 0;
  std::size_t step = 1;
};

}  // namespace

AblationSpace::AblationSpace(const Problem& problem, const GpuSpec& gpu,
                             std::vector<AccessCounts> profiles)
    : problem_(problem), gpu_(gpu), profiles_(std::move(profiles)) {
  if (std::holds_alternative<KvAppend>(problem)) {
    throw Error(
        ErrorKind::infeasible,
        "ablate: kv_append has one dataflow and places no codebooks, so there is nothing to "
        "leave out; use vqgen dev space");
  }
  if (std::holds_alternative<KvDequantize>(problem) ||
      std::holds_alternative<AttentionMerge>(problem) ||
      std::holds_alternative<WeightDequantize>(problem) || as_scalar(problem) != nullptr) {
    throw Error(ErrorKind::infeasible,
                fmt::format("ablate: {} has one dataflow, so there is nothing to compare it with; "
                            "use vqgen dev space",
                            op_name(problem)));
  }
  std::set<std::string> seen;
  for (const Plan& plan : space(problem, gpu, {.most = 0}).plans) {
    const Plan shape = shape_of(plan);
    if (seen.insert(plan_name(shape)).second) shapes_.push_back(shape);
  }
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  std::string why;
  const AblationRow lanes{"", "", Dataflows::lanes};
  const bool lanes_fit = fits(lanes, {Near::all}, why);
  const bool any_fits = lanes_fit || fits({}, {Near::all}, why);
  const std::string instead = "whole codebooks do not fit a block; as many entries as fit: " + why;
  const auto whole = [](bool fit) { return fit ? Near::all : Near::most; };
  const auto note = [&](bool fit) { return fit ? "" : instead; };
  const std::vector<LinearFusion> none{LinearFusion::permute};
  const std::vector<LinearFusion> all{LinearFusion::permute, LinearFusion::registers,
                                      LinearFusion::shared};
  using Rules = std::vector<PlacementRule>;
  const Rules parts{{Near::slack}, {Near::half}, {Near::keys}, {Near::values}};
  const Rules ends{{whole(any_fits)}, {Near::none}};
  const auto once = joined(ends, joined(parts, with_registers(ends)));
  const Rules copies{
      {Near::lane_copies}, {Near::half_copies}, {Near::value_copies}, {Near::weighed}};

  AblationRow far{"GC", "all entries in global memory, dataflow simt", Dataflows::lanes,
                  Rules{{Near::none}}, none};
  far.adds = false;
  add_row(std::move(far));
  add_row({"SC", "all entries in shared memory, dataflow simt", Dataflows::lanes,
           Rules{{whole(lanes_fit)}}, none, note(lanes_fit)});
  add_row({"+ boundary", "a part of the entries in shared memory, the rest in global memory",
           Dataflows::lanes, parts, none});
  add_row({"+ registers", "the hottest 1 or 8 entries in registers", Dataflows::lanes,
           with_registers(joined(Rules{{whole(lanes_fit)}, {Near::none}}, parts)), none});
  add_row({"+ dataflow",
           attention ? "another dataflow than simt"
                     : "another dataflow than simt, without fusion: through shared memory",
           Dataflows::others,
           once,
           {LinearFusion::shared}});
  AblationRow fusion{"+ fusion", "the paper's fusion: by shuffles where they are few",
                     Dataflows::fragments, once};
  AblationRow permutation{"+ permutation", "columns in the order in which nothing moves",
                          Dataflows::fragments, once, none};
  if (attention) {
    fusion.refused = permutation.refused =
        "attention_decode has no fusion to choose: its dataflow mma takes entries as "
        "operands as they come";
  } else {
    fusion.fusions = {fusion_by_shuffles(as_linear(problem)->weights.vector_size)};
  }
  add_row(std::move(fusion));
  add_row(std::move(permutation));
  add_row(
      {"+ copies", "entries in shared memory, one copy per lane", Dataflows::placed, copies, all});
  for (AblationRow whole_space :
       {AblationRow{"GC*", "the whole space, all entries in global memory", Dataflows::placed,
                    Rules{{Near::none}}, all},
        AblationRow{"SC*", "the whole space, all entries in shared memory once", Dataflows::placed,
                    Rules{{whole(any_fits)}}, all, note(any_fits)}}) {
    whole_space.adds = false;
    add_row(std::move(whole_space));
  }
  AblationRow best{"best", "the whole space", Dataflows::any};
  best.rules = joined(joined(once, Rules{{whole(lanes_fit)}}),
                      joined(with_registers(joined(Rules{{whole(lanes_fit)}}, parts)), copies));
  best.fusions = all;
  best.spread = best.adds = false;
  add_row(std::move(best));
}

bool AblationSpace::obeys_dataflow(const AblationRow& row, const Plan& plan) {
  const std::string_view name = dataflow_name(plan);
  if (row.dataflows == Dataflows::placed) return name != "sliced_codebook";
  if (row.dataflows == Dataflows::lanes) return name == "simt";
  if (row.dataflows == Dataflows::others) return name != "simt";
  return row.dataflows == Dataflows::any || name == "mma";
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
  std::vector<const Plan*> obeying;
  for (const Plan& shape : shapes_) {
    if (obeys_dataflow(row, shape)) obeying.push_back(&shape);
  }
  const std::size_t step = takes_long(rule) ? obeying.size() / kFewShapes + 1 : 1;
  for (std::size_t i = 0; i < obeying.size(); i += step) {
    // A row without fusions asks for a dataflow alone: permute.
    const LinearFusion fusion = row.fusions.empty() ? LinearFusion::permute : row.fusions.front();
    const Laid laid = complete(*obeying[i], {rule, fusion});
    if (laid.verdict.ok) return true;
    if (why.empty()) why = laid.verdict.reason;
  }
  if (why.empty()) why = "the space has no plan of the dataflow";
  return false;
}

Plan AblationSpace::shape_of(const Plan& plan) const {
  return with_fusion(without_cache(plan, problem_), LinearFusion::permute);
}

Laid AblationSpace::complete(const Plan& shape, const Variant& variant) const {
  return lay(with_fusion(shape, variant.fusion), variant.rule, problem_, gpu_, profiles_);
}

std::optional<Variant> AblationSpace::variant_of(const AblationRow& row, const Plan& plan) const {
  if (!obeys_dataflow(row, plan)) return std::nullopt;
  Variant variant;
  if (const auto* fragments = std::get_if<LinearMma>(&plan)) {
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

std::vector<LinearFusion> AblationSpace::fusions_of(const AblationRow& row,
                                                    const Plan& shape) const {
  if (!std::holds_alternative<LinearMma>(shape)) return {LinearFusion::permute};
  return row.fusions;
}

void AblationSpace::expected(const AblationRow& row, std::size_t count,
                             const TakePlan& take) const {
  if (count == 0) return;
  struct Guess {
    double us;
    std::size_t shape;
    PlacementRule rule;
  };
  std::vector<Guess> guesses;
  CostModel model(problem_, gpu_, profiles_);
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (!obeys_dataflow(row, shapes_[i])) continue;
    for (const PlacementRule& rule : row.rules) {
      if (takes_long(rule)) continue;
      const Laid laid = complete(shapes_[i], {rule});
      if (!laid.verdict.ok) continue;
      if (const auto cost = model(laid.plan)) guesses.push_back({cost->us, i, rule});
    }
  }
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const Guess& a, const Guess& b) { return a.us < b.us; });
  for (const Guess& guess : guesses) {
    if (count == 0) return;
    const Plan& shape = shapes_[guess.shape];
    const std::vector<LinearFusion> fusions = fusions_of(row, shape);
    if (fusions.empty()) continue;
    const Laid laid = complete(shape, {guess.rule, fusions.front()});
    if (laid.verdict.ok && take(laid.plan)) --count;
  }
}

void AblationSpace::spread(const AblationRow& row, std::size_t count, const TakePlan& take) const {
  std::map<std::size_t, std::vector<std::size_t>> by_dataflow;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (obeys_dataflow(row, shapes_[i])) by_dataflow[shapes_[i].index()].push_back(i);
  }
  std::vector<Kind> kinds;
  for (const PlacementRule& rule : row.rules) {
    for (const auto& [dataflow, members] : by_dataflow) {
      for (const LinearFusion fusion : fusions_of(row, shapes_[members.front()])) {
        kinds.push_back({{rule, fusion}, members, 0, golden_step(members.size())});
      }
    }
  }
  for (bool left = true; left && count > 0;) {
    left = false;
    for (Kind& kind : kinds) {
      while (count > 0 && kind.offered < kind.shapes.size()) {
        const std::size_t at = kind.offered++ * kind.step % kind.shapes.size();
        const Laid laid = complete(shapes_[kind.shapes[at]], kind.variant);
        if (!laid.verdict.ok || !take(laid.plan)) continue;
        left = true;
        --count;
        break;
      }
    }
  }
}

void AblationSpace::relay(const AblationRow& row, const Plan& plan, std::size_t count,
                          const TakePlan& take) const {
  if (!obeys_dataflow(row, plan)) return;
  const Plan shape = shape_of(plan);
  for (const PlacementRule& rule : row.rules) {
    for (const LinearFusion fusion : fusions_of(row, shape)) {
      if (count == 0) return;
      const Laid laid = complete(shape, {rule, fusion});
      if (laid.verdict.ok && take(laid.plan)) --count;
    }
  }
}

void AblationSpace::nearest(const AblationRow& row, const Plan& plan, std::size_t count,
                            const TakePlan& take) const {
  const std::optional<Variant> variant = variant_of(row, plan);
  if (!variant) return;
  const Plan shape = shape_of(plan);
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (shapes_[i].index() == shape.index()) {
      order.emplace_back(distance(shapes_[i], shape), i);
    }
  }
  std::sort(order.begin(), order.end());
  for (const auto& [away, i] : order) {
    if (count == 0) return;
    const Laid laid = complete(shapes_[i], *variant);
    if (laid.verdict.ok && take(laid.plan)) --count;
  }
}

std::string in_short(const Plan& plan, const Problem& problem) {
  return std::visit(
      [&]<class P>(const P& each) {
        std::string text(dataflow_name(plan));
        std::string near;
        for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
          const Member& value = each.*field.member;
          if constexpr (std::is_same_v<Member, Placement>) {
            const std::string name = field.name;
            const auto* op = std::get_if<AttentionDecode>(&problem);
            const VqFormat& format = op == nullptr            ? as_linear(problem)->weights
                                     : name == "key_codebook" ? op->keys
                                                              : op->values;
            near += fmt::format("; {} {}", name, short_name(value, format.entries()));
          } else if (std::is_same_v<Member, LinearFusion> || value != P{}.*field.member) {
            text += fmt::format(", {} ", field.name);
            if constexpr (std::is_enum_v<Member>) {
              text += enum_name(value);
            } else {
              text += std::to_string(value);
            }
          }
        });
        return text + near;
      },
      plan);
}

}  // namespace vqgen

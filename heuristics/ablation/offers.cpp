// How an AblationSpace offers plans: the cheapest by the cost model, spread evenly, one shape after
// another row's, or the nearest.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/problem/config.h"
#include "heuristics/ablation/rows.h"
#include "heuristics/ablation/shapes.h"
#include "heuristics/choose.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

// What is spread over: the shapes of one dataflow, completed in one way.
struct Kind {
  Variant variant;
  std::vector<std::size_t> shapes = {};
  std::size_t offered = 0;
  std::size_t step = 1;
};

// A step that visits each of `size` once, and any few of them in a row far from each other.
std::size_t golden_step(std::size_t size) {
  constexpr double kGolden = 0.6180339887498949;
  auto step =
      std::max<std::size_t>(1, static_cast<std::size_t>(kGolden * static_cast<double>(size)));
  while (std::gcd(step, size) != 1) ++step;
  return step;
}

}  // namespace

std::vector<LinearFusion> AblationSpace::fusions_of(const AblationRow& row,
                                                    const Plan& shape) const {
  if (!std::holds_alternative<LinearFragments>(shape)) return {LinearFusion::permute};
  return row.fusions;
}

void AblationSpace::expected(const AblationRow& row, std::size_t count,
                             const TakePlan& take) const {
  if (count == 0) return;
  if (!is_modelled(problem_)) {
    relay(row, propose(problem_, gpu_), count, take);
    return;
  }
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
      [&]<class P>(const P& of) {
        std::string text(dataflow_name(plan));
        std::string near;
        for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
          const Member& value = of.*field.member;
          if constexpr (std::is_same_v<Member, int>) {
            if (value != P{}.*field.member) text += fmt::format(", {} {}", field.name, value);
          } else if constexpr (std::is_same_v<Member, Combine>) {
            if (value != P{}.*field.member) {
              text += fmt::format(", {} {}", field.name, enum_name(value));
            }
          } else if constexpr (std::is_same_v<Member, LinearFusion>) {
            text += fmt::format(", {} {}", field.name, enum_name(value));
          } else if constexpr (std::is_same_v<Member, Placement>) {
            const std::string name = field.name;
            const auto* op = std::get_if<AttentionDecode>(&problem);
            const VqFormat& format = op == nullptr            ? as_linear(problem)->weights
                                     : name == "key_codebook" ? op->keys
                                                              : op->values;
            near += fmt::format("; {} {}", name, short_name(value, format.entries()));
          }
        });
        return text + near;
      },
      plan);
}

}  // namespace vqgen

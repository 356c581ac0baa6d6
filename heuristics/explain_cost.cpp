#include "heuristics/explain_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/profiles.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

constexpr double kWorthSaying = 0.005;  // us

std::string parts_text(const Cost& cost, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) {
    if (cost.parts.of[i] < kWorthSaying) continue;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", enum_names<CostPart>[i],
                        cost.parts.of[i]);
  }
  return text.empty() ? "nothing" : text;
}

// "threads 256, splits 4": fields that b has with other values than a; of another dataflow, those
// that are not its defaults.
std::string differences(const Plan& a, const Plan& b) {
  Json usual = to_json(a);
  if (a.index() != b.index()) {
    usual = std::visit(
        [](const auto& each) { return to_json(Plan(std::decay_t<decltype(each)>{})); }, b);
  }
  std::string text;
  const auto add = [&](const std::string& name, const Json& value) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        value.is_string() ? value.get<std::string>() : value.dump());
  };
  const Json own = to_json(b);
  for (const auto& [name, value] : own.items()) {
    if (usual.at(name) == value) continue;
    if (!value.is_object()) {
      add(name, value);
      continue;
    }
    for (const auto& [member, number] : value.items()) {
      if (usual.at(name).at(member) != number) add(name + "." + member, number);
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> cost_lines(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                    std::span<const HotnessProfile> profiles) {
  const std::optional<Cost> cost = CostModel(problem, gpu, profiles)(plan);
  if (!cost) return {fmt::format("{} is not modelled yet", kernel_name(plan))};
  constexpr auto kInTurn = static_cast<std::size_t>(CostPart::memory);
  const CostProfile& profile = cost_profile();
  std::vector<std::string> lines{
      fmt::format("{:.1f} us expected of one call whose codes no cache holds", cost->us),
      fmt::format("one after the other, us: {}", parts_text(*cost, 0, kInTurn)),
      fmt::format("at the same time, us: {}; together as their norm with p = {:g}",
                  parts_text(*cost, kInTurn, kCostParts),
                  profile.dataflows.at(std::string(kernel_name(plan))).overlap),
      fmt::format("fitted to {}", profile.source)};
  if (gpu.name != find_gpu(profile.gpu).name) {
    lines.push_back(fmt::format(
        "not measured on {}: scaled from {} by clock, multiprocessors and bandwidth alone",
        gpu.name, find_gpu(profile.gpu).name));
  }
  return lines;
}

std::vector<std::string> other_plan_lines(const Plan& plan, const Problem& problem,
                                          const GpuSpec& gpu,
                                          std::span<const HotnessProfile> profiles) {
  constexpr std::size_t kMost = 5;
  std::set<std::string> seen{kind_of(plan, problem)};
  std::vector<std::string> lines;
  for (const RankedPlan& each : rank(problem, gpu, profiles)) {
    if (lines.size() == kMost) break;
    const std::string kind = kind_of(each.plan, problem);
    if (!seen.insert(kind).second) continue;
    lines.push_back(
        fmt::format("{:.1f} us: {} ({})", each.cost.us, kind, differences(plan, each.plan)));
  }
  if (lines.empty()) lines.emplace_back("no plan of another kind is feasible and modelled yet");
  return lines;
}

}  // namespace vqgen

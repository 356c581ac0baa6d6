// Explains a plan's expected time: its parts, and what other plans and entries would take.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/formats.h"
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

// "splits 4, threads 256".
std::string differences_text(const Plan& plan, const Plan& usual) {
  std::vector<std::string> texts;
  for (const FieldValue& each : differences(plan, usual)) {
    texts.push_back(fmt::format("{} {}", each.name, each.value));
  }
  std::sort(texts.begin(), texts.end());
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Expected time of a balanced schedule with equal lengths, beside a plan that has another schedule.
std::optional<std::string> by_length_line(const Plan& plan, const Problem& problem,
                                          const GpuSpec& gpu,
                                          std::span<const AccessCounts> profiles) {
  const auto* op = std::get_if<AttentionDecode>(&problem);
  if (op == nullptr || op->shape.batch == 1 || op->shape.batch_invariant || is_by_length(plan)) {
    return std::nullopt;
  }
  Config config;
  config.problem = problem;
  config.plan = {{"schedule", "balanced"}};
  const Plan other = propose(config, gpu);
  if (!check(other, problem, gpu).ok) return std::nullopt;
  const std::optional<Cost> cost = CostModel(problem, gpu, profiles)(other);
  if (!cost) return std::nullopt;
  return fmt::format(
      "{:.1f} us expected with schedule balanced, at full lengths: for batches in which some "
      "sequences are much longer than others",
      cost->us);
}

constexpr const char* kUnknownTime = "not known: the time of the plan is not modelled";

std::string faster_text(const OtherFormats& other, double own_us) {
  return fmt::format("{:.1f} us expected of {}, {:.2f} times as fast", other.us, other.formats,
                     own_us / other.us);
}

std::string none_faster(double speedup) {
  return fmt::format("none is expected to be more than {:.0f} % faster", 100 * (speedup - 1));
}

}  // namespace

std::vector<std::string> cost_lines(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                    std::span<const AccessCounts> profiles) {
  const std::optional<Cost> cost = CostModel(problem, gpu, profiles)(plan);
  if (!cost) return {fmt::format("{} is not modelled yet", kernel_name(plan))};
  constexpr auto kInTurn = static_cast<std::size_t>(CostPart::memory);
  const std::string& fitted = cost_profile().gpu;
  const bool scaled = gpu.name != find_gpu(fitted).name;
  std::vector<std::string> lines{
      fmt::format("{:.1f} us expected of one call with cold caches", cost->us),
      fmt::format("one after the other, us: {}", parts_text(*cost, 0, kInTurn)),
      fmt::format("overlapping, us each if alone: {}", parts_text(*cost, kInTurn, kCostParts)),
      fmt::format("cost model: {}.json{}", fitted, scaled ? ", scaled to " + gpu.name : "")};
  if (auto line = by_length_line(plan, problem, gpu, profiles)) lines.push_back(*line);
  return lines;
}

std::vector<std::string> other_plan_lines(const Plan& plan, const Problem& problem,
                                          const GpuSpec& gpu,
                                          std::span<const AccessCounts> profiles) {
  constexpr std::size_t kMost = 5;
  std::set<std::string> seen{kind_of(plan, problem)};
  std::vector<std::string> lines;
  for (const RankedPlan& each : rank(problem, gpu, profiles)) {
    if (lines.size() == kMost) break;
    const std::string kind = kind_of(each.plan, problem);
    if (!seen.insert(kind).second) continue;
    lines.push_back(
        fmt::format("{:.1f} us: {} ({})", each.cost.us, kind, differences_text(each.plan, plan)));
  }
  if (lines.empty()) lines.emplace_back("no plan of another kind is feasible and modelled yet");
  return lines;
}

std::vector<std::string> other_entries_lines(const Plan& plan, const Problem& problem,
                                             const GpuSpec& gpu) {
  const std::optional<Cost> own = CostModel(problem, gpu, {})(plan);
  if (!own) return {kUnknownTime};
  std::vector<std::string> lines;
  for (const OtherFormats& each : faster_entries(problem, gpu, own->us)) {
    lines.push_back(faster_text(each, own->us));
  }
  if (lines.empty()) lines.push_back(none_faster(kWorthChanging));
  return lines;
}

std::vector<std::string> other_presets_lines(const Plan& plan, const Problem& problem,
                                             const GpuSpec& gpu) {
  const std::optional<Cost> own = CostModel(problem, gpu, {})(plan);
  if (!own) return {kUnknownTime};
  const std::optional<OtherFormats> best = faster_presets(problem, gpu, own->us);
  if (!best) return {none_faster(kWorthTraining) + " than this and the above"};
  return {faster_text(*best, own->us) +
          "; it needs training and changes the loss (docs/formats.md)"};
}

}  // namespace vqgen

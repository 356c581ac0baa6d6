#include "heuristics/tuned/ladder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "heuristics/check.h"
#include "heuristics/choose.h"

namespace vqgen {
namespace {

int page_tokens_of(const Problem& problem) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.shape.page_tokens; }) return op.shape.page_tokens;
        return 0;
      },
      problem);
}

// The shape without its epilogue, and what it has of one.
LinearShape without_epilogue(LinearShape shape) {
  const LinearShape plain;
  shape.gate = plain.gate;
  shape.gate_rows = plain.gate_rows;
  shape.multiplier = plain.multiplier;
  shape.residual = plain.residual;
  return shape;
}
bool has_epilogue(const Problem& problem) {
  const Linear* const op = as_linear(problem);
  return op != nullptr && !(without_epilogue(op->shape) == op->shape);
}

// The problem without what changes no plan: pages, the room of a cache that is appended to, and the
// epilogue of a product.
Problem without_room(Problem problem) {
  std::visit(
      [](auto& op) {
        if constexpr (requires { op.shape.page_tokens; }) op.shape.page_tokens = 0;
        if constexpr (requires { op.shape.raw_page_tokens; }) op.shape.raw_page_tokens = 0;
        if constexpr (requires { op.shape.gate; }) op.shape = without_epilogue(op.shape);
      },
      problem);
  if (auto* append = std::get_if<KvAppend>(&problem)) append->shape.tokens = 1;
  return problem;
}

// Skew of the codes: the exponent of Zipf's law, 0 if uniform; a profile has none and sorts last.
double skew_of(const std::string& codes) {
  if (codes == "uniform") return 0;
  return zipf_skew(codes).value_or(HUGE_VAL);
}

// Codes that are no Zipf's law are taken for uniform ones, as the cost model takes them.
double codes_distance(const std::string& row, const std::string& wanted) {
  if (row == wanted) return -1;
  const double skew = skew_of(wanted);
  return std::abs(skew_of(row) - (std::isfinite(skew) ? skew : 0));
}

std::string row_differences(const FoundRow& row, const Problem& problem, const std::string& codes) {
  std::vector<std::string> texts;
  const auto add = [&](const char* name, const auto& there, const auto& here) {
    if (there != here) texts.push_back(fmt::format("{} {} instead of {}", name, there, here));
  };
  add("page_tokens", page_tokens_of(row.problem), page_tokens_of(problem));
  add("an epilogue", has_epilogue(row.problem), has_epilogue(problem));
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    add("tokens", std::get<KvAppend>(row.problem).shape.tokens, append->shape.tokens);
  }
  add("codes", row.codes, codes);
  return fmt::format("{}", fmt::join(texts, "; "));
}

// Rows of this problem on this device class, in the order of trial: by rung, nearer codes, the
// earlier table, the key.
std::vector<Neighbour> rows_of(const TunedTables& tables, const Problem& problem,
                               const GpuSpec& gpu, const std::string& codes) {
  std::vector<Neighbour> all;
  const auto add = [&](FoundRow&& found, Rung rung) {
    std::string differs = row_differences(found, problem, codes);
    all.push_back({.rung = rung, .found = std::move(found), .differs = std::move(differs)});
  };
  for (FoundRow& found : tables.of(problem)) {
    if (found.gpu != gpu.name) continue;
    const Rung rung = found.codes == codes ? Rung::exact : Rung::codes;
    add(std::move(found), rung);
  }
  const Problem bare = without_room(problem);
  const auto alike = [&](const Problem& other) {
    return !(other == problem) && without_room(other) == bare;
  };
  for (FoundRow& found : tables.like(problem, gpu.name, alike)) add(std::move(found), Rung::alike);
  const auto place_of = [&](const Neighbour& each) {
    const FoundRow& row = each.found;
    return std::tuple(each.rung, codes_distance(row.codes, codes), row.order, row.key);
  };
  std::ranges::sort(all, {}, place_of);
  return all;
}

// Why a row's plan is not taken; empty where it is.
std::string refusal(const TunedRow& row, const Config& config, const GpuSpec& gpu) {
  if (!row.policy.of_gpu()) {
    return fmt::format("was timed by '{}', which says nothing of a GPU", row.policy.timer);
  }
  if (!has_fixed_fields(row.plan, config)) {
    return "the config fixes fields of the plan that it has otherwise";
  }
  const Verdict verdict = check(row.plan, config.problem, gpu);
  return verdict.ok ? "" : "cannot run here: " + verdict.reason;
}

}  // namespace

LadderAnswer look_up(const TunedTables& tables, const Config& config, const GpuSpec& gpu,
                     const LadderOptions& options) {
  LadderAnswer answer;
  if (tables.empty()) return answer;
  for (Neighbour& each : rows_of(tables, config.problem, gpu, options.codes)) {
    if (answer.taken && !options.all) break;
    std::optional<TunedRow> row = tables.read(each.found);
    if (!row) continue;
    each.row = std::move(*row);
    each.refused = answer.taken ? "an earlier row was taken" : refusal(each.row, config, gpu);
    if (each.refused.empty()) {
      answer.taken = std::move(each);
    } else {
      answer.passed.push_back(std::move(each));
    }
  }
  return answer;
}

PlanSource source_of(const Neighbour& taken) {
  const TunedRow& row = taken.row;
  std::string why = fmt::format("{}: {:.2f} us there, {:.2f} us by the default plan",
                                taken.found.where, row.time_us, row.default_us);
  if (!taken.differs.empty()) why += "; " + taken.differs;
  return {taken.rung, std::move(why)};
}

Json to_json(const PlanSource& source) {
  return {{"rung", std::string(enum_name(source.rung))}, {"why", source.why}};
}

}  // namespace vqgen

// Rows of tuned tables for tests: sound ones, with plans that check() accepts on an H200.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/problem/config.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/space.h"
#include "heuristics/tuned/ladder.h"
#include "heuristics/tuned/table.h"
#include "tests/core/support.h"

namespace vqgen::test {

inline constexpr const char* kTunedGpu = "NVIDIA H200";

inline TunedRow tuned_row(const Problem& problem, const Plan& plan, double time_us = 10) {
  const Plan own = choose(problem, find_gpu("h200"), {.chooser = Chooser::rules});
  return {.problem = problem,
          .gpu = kTunedGpu,
          .policy = {.rounds = 21},
          .environment = {kTunedGpu, "580.1", "nvrtc 13.0", "0.1"},
          .plan = plan,
          .time_us = time_us,
          .low_us = time_us,
          .high_us = time_us,
          .default_plan = own,
          .default_us = time_us * 1.5,
          .runner_up = plan,
          .runner_up_us = time_us,
          .noise = 0.01,
          .rel_err = 2e-4,
          .candidates = 17};
}

// Lines with the content of the row's own line: with spaces, Windows line ends, other key order,
// escapes and digits, and without the formats' defaults.
inline std::vector<std::string> other_texts(const TunedRow& row) {
  const std::string line = to_json(row).dump();
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = line;
    for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
    return text;
  };
  nlohmann::ordered_json turned;
  const auto ordered = nlohmann::ordered_json::parse(line);
  for (auto each = ordered.rbegin(); each != ordered.rend(); ++each) turned[each.key()] = *each;
  Json brief = parse_json(line, "row");
  for (const char* operand : {"keys", "values", "weights"}) {
    if (brief["problem"].contains(operand)) brief["problem"][operand].erase("tile_rows");
  }
  return {
      replaced(",\"", ", \""),    line + "\r", turned.dump(), replaced("NVIDIA", "\\u004eVIDIA"),
      replaced("0.01", "1.0e-2"), brief.dump()};
}

inline Config config_of(const Problem& problem, const std::string& plan = "{}") {
  Config config = read_config(to_json(problem), "c.json");
  config.plan = parse_json(plan, "plan");
  return config;
}

// Tables in the order of look-up: t0, t1, ...
class Tables {
 public:
  explicit Tables(const std::vector<std::vector<TunedRow>>& tables, Damage damage = Damage::fail)
      : tables_(damage) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      tables_.add(fmt::format("t{}", i), table_text({tables[i]}));
    }
  }
  LadderAnswer ask(const Problem& problem, const std::string& codes = "uniform",
                   const std::string& plan = "{}") const {
    return look_up(tables_, config_of(problem, plan), find_gpu("h200"), {.codes = codes});
  }
  const TunedTables& get() const { return tables_; }

 private:
  TunedTables tables_;
};

// Plans of the space of a problem on an H200, as different as possible.
inline std::vector<Plan> some_plans(const Problem& problem, std::size_t most) {
  return space(problem, find_gpu("h200"), {.most = most}).plans;
}

inline Problem gemv_problem(int rows, std::int64_t out_features, std::int64_t in_features,
                            const std::string& format = "aqlm-2x8") {
  Gemv op;
  op.shape = {rows, out_features, in_features};
  op.weights = find_format(format, "test");
  return op;
}

inline Problem attention_problem(std::int64_t tokens, int batch = 1, int kv_heads = 8) {
  AttentionDecode op;
  op.shape = {.batch = batch,
              .query_heads = 4 * kv_heads,
              .kv_heads = kv_heads,
              .head_dim = 128,
              .tokens = tokens};
  op.keys = find_format("vecinfer-d4b8", "test");
  op.values = for_values(op.keys);
  return op;
}

}  // namespace vqgen::test

// lint(): a sound row has no finding, and each doubtful thing has its own. Shipped tables have
// none.
#include "heuristics/tuned/table.h"

#include <functional>

#include "heuristics/tuned/tables.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

double allowed(DType dtype) { return dtype == DType::f16 ? 1e-3 : 8e-3; }

std::vector<LintFinding> findings_of(const std::function<void(TunedRow&)>& change,
                                     const std::string& name = "tables/h200.jsonl") {
  const Problem problem = test::gemv_problem(1, 1024, 1024);
  TunedTable table{{test::tuned_row(problem, choose(problem, find_gpu("h200")))}};
  table.rows.push_back(table.rows.front());
  table.rows.back().policy.codes = "zipf:1.5";
  change(table.rows.back());
  return lint(table, name, allowed);
}

TEST(TunedLint, ASoundRowHasNoFinding) {
  EXPECT_TRUE(findings_of([](TunedRow&) {}).empty());
  EXPECT_TRUE(findings_of([](TunedRow& row) { row.default_us = row.time_us * 0.995; }).empty());
  EXPECT_TRUE(findings_of([](TunedRow&) {}, "mine.jsonl").empty());
  // Tables without rotated codebooks have this policy.
  EXPECT_TRUE(findings_of([](TunedRow& row) { row.policy.l2 = "cold"; }).empty());
}

TEST(TunedLint, EachDoubtIsFoundOnce) {
  using Change = std::function<void(TunedRow&)>;
  const std::vector<std::pair<Change, std::string>> doubts{
      {[](TunedRow& row) { row.noise = 0; }, "noise of 0"},
      {[](TunedRow& row) { row.noise = 0.2; }, "noise of 20 %"},
      {[](TunedRow& row) { row.default_us = row.time_us * 0.9; }, "slower than the default plan"},
      {[](TunedRow& row) { row.runner_up_us = row.time_us * 0.9; }, "slower than the runner-up"},
      {[](TunedRow& row) { row.rel_err = 0.01; }, "rel_err"},
      {[](TunedRow& row) { row.environment.driver = ""; }, "driver is empty"},
      {[](TunedRow& row) { row.environment.device = "replay"; }, "times of a recording"},
      {[](TunedRow& row) { row.policy.codes = "zipf"; }, "codes 'zipf'"},
      {[](TunedRow& row) { row.policy.codes = "zipf:nan"; }, "codes 'zipf:nan'"},
      {[](TunedRow& row) { row.policy.codes = "zipf:1e999"; }, "codes 'zipf:1e999'"},
      {[](TunedRow& row) { row.policy.codes = "zipf:1.0"; }, "codes 'zipf:1.0'"},
      {[](TunedRow& row) { row.policy.codes = "profile:../../x"; }, "codes 'profile:../../x'"},
      {[](TunedRow& row) { row.policy.timer = "cpu"; }, "timed by 'cpu'"},
      {[](TunedRow& row) { row.policy.l2 = "warm"; }, "l2 'warm'"},
      {[](TunedRow& row) { row.policy.rounds = 0; }, "0 rounds"},
      {[](TunedRow& row) { row.plan = LinearSimt{.threads = 48}; }, "the winner cannot run"},
      {[](TunedRow& row) { row.default_plan = LinearSimt{.threads = 48}; },
       "the default plan cannot run"}};
  for (const auto& [change, words] : doubts) {
    const std::vector<LintFinding> findings = findings_of(change);
    ASSERT_EQ(findings.size(), 1u) << words;
    EXPECT_EQ(findings[0].where, "tables/h200.jsonl:3");
    expect_words(findings[0].what, {words});
  }
}

TEST(TunedLint, AFileOfOneClassHoldsNoOther) {
  const auto other = [](TunedRow& row) { row.gpu = "NVIDIA H100 80GB HBM3"; };
  ASSERT_EQ(findings_of(other).size(), 1u);
  expect_words(findings_of(other)[0].what, {"NVIDIA H100", "NVIDIA H200"});
  EXPECT_TRUE(findings_of(other, "all.jsonl").empty());
  const auto unknown = [](TunedRow& row) { row.gpu = "NVIDIA H999"; };
  ASSERT_EQ(findings_of(unknown, "all.jsonl").size(), 1u);
  expect_words(findings_of(unknown, "all.jsonl")[0].what, {"no GPU profile", "NVIDIA H999"});
}

TEST(TunedLint, WhatShipsIsSound) {
  for (const ShippedTable& each : shipped_tables()) {
    for (const LintFinding& finding : lint(read_table(each.text, each.name), each.name, allowed)) {
      ADD_FAILURE() << finding.where << ": " << finding.what;
    }
    // Lookups compare the text (tables.h).
    EXPECT_EQ(table_text(read_table(each.text, each.name)), each.text) << each.name;
  }
}

}  // namespace
}  // namespace vqgen

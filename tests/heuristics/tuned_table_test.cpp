// Tuned tables as files and as sets: what is written is read back and nothing else is, and merging
// does not depend on order, grouping or repetition.
#include "heuristics/tuned/table.h"

#include <algorithm>
#include <random>

#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

using test::attention_problem;
using test::gemv_problem;
using test::some_plans;
using test::tuned_row;

constexpr const char* kHeader = "{\"vqgen_tuned\":1}\n";

std::string line_of(const TunedRow& row) { return to_json(row).dump() + '\n'; }

// Three plans of each of three problems.
const std::vector<TunedRow>& samples() {
  static const std::vector<TunedRow> rows = [] {
    std::vector<TunedRow> made;
    for (const Problem& problem :
         {gemv_problem(1, 256, 512), gemv_problem(1, 512, 256), attention_problem(100)}) {
      const std::vector<Plan> plans = some_plans(problem, 40);
      for (std::size_t i = 0; i < 3; ++i) made.push_back(tuned_row(problem, plans.at(i)));
    }
    return made;
  }();
  return rows;
}

// Few keys, times and plans, so that there are many rows of one key, ties of time and repetitions.
TunedTable random_table(std::mt19937_64& random, int rows) {
  TunedTable table;
  for (int i = 0; i < rows; ++i) {
    TunedRow row = samples()[random() % samples().size()];
    row.time_us = row.low_us = row.high_us = static_cast<double>(1 + random() % 2);
    row.policy.codes = random() % 2 == 0 ? "uniform" : "zipf:1";
    row.policy.timer = random() % 4 == 0 ? "cpu" : "graph";
    row.policy.l2 = random() % 3 == 0 ? kL2CodesCold : kL2Cold;
    row.candidates = static_cast<int>(1 + random() % 3);
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string merged(std::vector<TunedTable> tables) { return table_text(merge(tables)); }

TEST(TunedTable, ReadsWhatItWritesInAnyOrderOfRows) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    TunedTable table = random_table(random, trial);
    const std::string text = table_text(table);
    EXPECT_EQ(table_text(read_table(text, "t")), text);
    std::shuffle(table.rows.begin(), table.rows.end(), random);
    EXPECT_EQ(table_text(table), text);
    const TunedTable sorted = read_table(text, "t");
    EXPECT_TRUE(std::is_sorted(
        sorted.rows.begin(), sorted.rows.end(),
        [](const TunedRow& a, const TunedRow& b) { return tuned_key(a) < tuned_key(b); }));
  }
  EXPECT_EQ(table_text({}), kHeader);
}

TEST(TunedTable, MergeIsCommutativeAssociativeAndIdempotent) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const TunedTable a = random_table(random, 1 + trial % 9);
    const TunedTable b = random_table(random, 5);
    const TunedTable c = random_table(random, 3);
    const std::string all = merged({a, b, c});
    EXPECT_EQ(merged({c, a, b}), all);
    EXPECT_EQ(merged({b, c, a, c, b}), all);
    const std::vector<TunedTable> ab{a, b};
    const std::vector<TunedTable> bc{b, c};
    EXPECT_EQ(merged({merge(ab), c}), all);
    EXPECT_EQ(merged({a, merge(bc)}), all);
    EXPECT_EQ(merged({a}), merged({a, a}));
    // Each key occurs once, and no row of the key is better.
    const TunedTable result = read_table(all, "t");
    for (const TunedTable& table : {a, b, c}) {
      for (const TunedRow& row : table.rows) {
        const auto kept =
            std::find_if(result.rows.begin(), result.rows.end(),
                         [&](const TunedRow& each) { return tuned_key(each) == tuned_key(row); });
        ASSERT_NE(kept, result.rows.end());
        EXPECT_GE(kept->policy.grade(), row.policy.grade());
        if (kept->policy.grade() == row.policy.grade()) {
          EXPECT_LE(kept->time_us, row.time_us);
        }
        EXPECT_FALSE(better(row, *kept));
      }
    }
  }
}

TEST(TunedTable, TiesGoByTheNameOfThePlanBeforeAllElse) {
  const Problem problem = gemv_problem(1, 256, 512);
  TunedRow first = tuned_row(problem, LinearSimt{.threads = 128});
  TunedRow second = tuned_row(problem, LinearSimt{.threads = 64});
  ASSERT_LT(plan_name(first.plan), plan_name(second.plan));
  first.candidates = 9;  // the text alone would put it last
  second.candidates = 1;
  EXPECT_TRUE(better(first, second));
  second.time_us = 9.5;
  EXPECT_TRUE(better(second, first));
}

TEST(TunedTable, BetterIsATotalOrder) {
  std::mt19937_64 random(3);
  const TunedTable table = random_table(random, 40);
  for (const TunedRow& a : table.rows) {
    for (const TunedRow& b : table.rows) {
      const bool same = to_json(a) == to_json(b);
      EXPECT_EQ(better(a, b) + better(b, a), same ? 0 : 1);
    }
  }
}

std::string refusal(const std::string& text) {
  return message_of([&] { read_table(text, "t.jsonl"); });
}

TEST(TunedTable, WhatIsNoTableIsRefusedWithItsLine) {
  const Problem problem = gemv_problem(1, 256, 512);
  const TunedRow row = tuned_row(problem, some_plans(problem, 40)[0]);
  TunedRow other = row;
  other.policy.codes = "zipf:1";
  const std::string good = kHeader + line_of(row) + line_of(other);
  EXPECT_EQ(read_table(good, "t").rows.size(), 2u);
  expect_words(refusal(""), {"t.jsonl:1", "is empty", "vqgen_tuned"});
  expect_words(refusal("\n"), {"t.jsonl:1", "is empty"});
  expect_words(refusal("x\n"), {"t.jsonl:1", "malformed JSON"});
  expect_words(refusal("{}\n"), {"t.jsonl:1", "no header"});
  expect_words(refusal(line_of(row)), {"t.jsonl:1", "no header"});
  expect_words(refusal("{\"future\":3,\"vqgen_tuned\":2}\n"),
               {"t.jsonl:1: /vqgen_tuned: is format version 2", "knows up to 1; upgrade vqgen"});
  expect_words(refusal("{\"vqgen_tuned\":1,\"future\":3}\n"), {"t.jsonl:1", "unknown field"});
  expect_words(refusal("{\"vqgen_tuned\":1.5}\n"), {"t.jsonl:1"});
  expect_words(refusal("{\"vqgen_tuned\":1,\"vqgen_tuned\":1}\n"), {"t.jsonl:1", "twice"});
  expect_words(refusal("{\"vqgen_tuned\":1}"), {"t.jsonl:1", "cut off"});
  expect_words(refusal(good + line_of(row)), {"t.jsonl:4", "of line 2"});
  expect_words(refusal(good + "\n"), {"t.jsonl:4", "malformed JSON"});
  expect_words(refusal(kHeader + to_json(row).dump(1) + "\n"), {"t.jsonl:2", "malformed JSON"});
  Json lie = to_json(row);
  lie["time_us"] = -1;
  expect_words(refusal(kHeader + lie.dump() + "\n"), {"t.jsonl:2", "time_us"});
}

TEST(TunedTable, RowsAreReadHoweverTheyAreWritten) {
  const Problem problem = gemv_problem(1, 256, 512);
  const TunedRow row = tuned_row(problem, some_plans(problem, 40)[0]);
  for (const std::string& line : test::other_texts(row)) {
    const TunedTable table = read_table(kHeader + line + '\n', "t");
    ASSERT_EQ(table.rows.size(), 1u) << line;
    EXPECT_EQ(table_text(table), kHeader + line_of(row)) << line;
    expect_words(refusal(kHeader + line_of(row) + line + '\n'), {"t.jsonl:3", "of line 2"});
  }
}

// A file that ends anywhere but after a row is an error; after a row it is a shorter table.
TEST(TunedTable, EveryTruncationIsFoundOrIsAWholeTable) {
  const Problem problem = gemv_problem(1, 256, 512);
  const TunedRow row = tuned_row(problem, some_plans(problem, 40)[0]);
  TunedRow other = row;
  other.gpu = "another";
  const std::string text = table_text({{row, other}});
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string part = text.substr(0, size);
    if (!part.empty() && part.back() == '\n') {
      EXPECT_LE(read_table(part, "t").rows.size(), 1u);
    } else {
      EXPECT_NE(refusal(part), "") << size;
    }
  }
}

TEST(TunedTable, IsPublishedWhole) {
  const TempFolder folder;
  const Problem problem = gemv_problem(1, 256, 512);
  const TunedTable table{{tuned_row(problem, some_plans(problem, 40)[0])}};
  write_table(folder.path() / "t.jsonl", table);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"t.jsonl"});
  EXPECT_EQ(table_text(read_table(folder.path() / "t.jsonl")), table_text(table));
  expect_words(message_of([&] { read_table(folder.path() / "none.jsonl"); }), {"none.jsonl"});
}

// Times with warm codebooks are shorter but not comparable.
TEST(TunedTable, RowsWithCodebooksColdGoBeforeFasterOnesWithCodebooksWarm) {
  const Problem problem = gemv_problem(1, 256, 512);
  const std::vector<Plan> plans = some_plans(problem, 40);
  TunedRow cold = tuned_row(problem, plans[0], 100);
  TunedRow warm = tuned_row(problem, plans[1], 50);
  warm.policy.l2 = kL2CodesCold;
  ASSERT_EQ(cold.policy.l2, "all_cold");
  EXPECT_EQ(merged({{{warm}}, {{cold}}}), merged({{{cold}}}));
  warm.plan = cold.plan;
  warm.time_us = cold.time_us;
  EXPECT_EQ(diff({{warm}}, {{cold}}).times.size(), 1u);
  EXPECT_EQ(diff({{warm}}, {{warm}}).same, 1u);
}

TEST(TunedTable, DiffSaysWhatChangedBeyondTheNoise) {
  const Problem problem = gemv_problem(1, 256, 512);
  const std::vector<Plan> plans = some_plans(problem, 40);
  const TunedRow base = tuned_row(problem, plans[0], 100);
  const auto with = [&](const std::string& codes, double us, const Plan& plan) {
    TunedRow row = tuned_row(problem, plan, us);
    row.policy.codes = codes;
    return row;
  };
  const TunedTable before{{base, with("zipf:1", 100, plans[0]), with("zipf:2", 100, plans[0]),
                           with("zipf:3", 100, plans[0])}};
  const TunedTable after{{base, with("zipf:1", 100.9, plans[0]), with("zipf:2", 98.9, plans[0]),
                          with("zipf:4", 100, plans[1])}};
  TableDiff found = diff(before, after);
  EXPECT_EQ(found.same, 2u);
  ASSERT_EQ(found.times.size(), 1u);
  EXPECT_EQ(found.times[0].after.policy.codes, "zipf:2");
  ASSERT_EQ(found.only_before.size(), 1u);
  EXPECT_EQ(found.only_before[0].policy.codes, "zipf:3");
  ASSERT_EQ(found.only_after.size(), 1u);
  EXPECT_EQ(found.only_after[0].policy.codes, "zipf:4");
  EXPECT_TRUE(found.winners.empty());
  found = diff({{base}}, {{with("uniform", 99.5, plans[1])}});
  ASSERT_EQ(found.winners.size(), 1u);
  EXPECT_FALSE(found.winners[0].beyond_noise);
  EXPECT_FALSE(found.empty());
  EXPECT_TRUE(diff(before, before).empty());
}

}  // namespace
}  // namespace vqgen

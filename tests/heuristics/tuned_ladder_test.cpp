// The ladder: which row of a problem gives the plan, and that no plan is taken that cannot run.
#include "heuristics/tuned/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/plan/plan_name.h"
#include "heuristics/check.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

using test::attention_problem;
using test::config_of;
using test::gemv_problem;
using test::some_plans;
using test::Tables;
using test::tuned_row;

const GpuSpec& h200() {
  static const GpuSpec gpu = find_gpu("h200");
  return gpu;
}

TunedRow with_codes(TunedRow row, const std::string& codes) {
  row.policy.codes = codes;
  return row;
}
TunedRow of_class(TunedRow row, const std::string& gpu) {
  row.gpu = gpu;
  return row;
}

// "exact t0:2", or "" if nothing is taken.
std::string taken(const LadderAnswer& answer) {
  if (!answer.taken) return "";
  return fmt::format("{} {}", enum_name(answer.taken->rung), answer.taken->found.where);
}

Plan model_choice(const Problem& problem) { return choose(problem, h200()); }

TEST(TunedLadder, TheUsersTablesGoBeforeOthersWhateverTheTimes) {
  const Problem problem = gemv_problem(1, 1024, 1024);
  const std::vector<Plan> plans = some_plans(problem, 20);
  const TunedRow slow = tuned_row(problem, plans[0], 100);
  const TunedRow fast = tuned_row(problem, plans[1], 1);
  EXPECT_EQ(taken(Tables({{slow}, {fast}}).ask(problem)), "exact t0:2");
  EXPECT_EQ(taken(Tables({{}, {slow}, {fast}}).ask(problem)), "exact t1:2");
  const LadderAnswer answer = Tables({{fast}, {slow}}).ask(problem);
  EXPECT_EQ(answer.taken->row.plan, plans[1]);
  expect_words(source_of(*answer.taken).why, {"t0:2", "1.00 us", "1.50 us"});
  EXPECT_EQ(taken(Tables({}).ask(problem)), "");
  EXPECT_EQ(taken(Tables({{slow}}).ask(gemv_problem(1, 1024, 1024, "aqlm-1x8"))), "");
}

TEST(TunedLadder, OtherCodesServeTheNearestSkewFirst) {
  const Problem problem = attention_problem(4096);
  const Plan plan = model_choice(problem);
  std::vector<TunedRow> rows;
  for (const char* codes : {"profile:ab", "uniform", "zipf:1", "zipf:3"}) {
    rows.push_back(with_codes(tuned_row(problem, plan), codes));
  }
  const auto codes_for = [&](const std::string& codes) {
    const LadderAnswer answer = Tables({rows}).ask(problem, codes);
    EXPECT_EQ(answer.taken->rung,
              answer.taken->row.policy.codes == codes ? Rung::exact : Rung::codes);
    return answer.taken->row.policy.codes;
  };
  EXPECT_EQ(codes_for("zipf:3"), "zipf:3");
  EXPECT_EQ(codes_for("zipf:2.1"), "zipf:3");
  EXPECT_EQ(codes_for("zipf:0.2"), "uniform");
  EXPECT_EQ(codes_for("zipf:0.9"), "zipf:1");
  EXPECT_EQ(codes_for("profile:cd"), "uniform");
  EXPECT_EQ(codes_for("profile:ab"), "profile:ab");
  rows.erase(rows.begin() + 1, rows.end());
  EXPECT_EQ(codes_for("zipf:1"), "profile:ab");
}

TEST(TunedLadder, APlainProductServesThatWithAnEpilogue) {
  const Problem plain = gemv_problem(1, 1024, 1024, "aqlm-1x8");
  const Plan plan = model_choice(plain);
  const TunedRow row = tuned_row(plain, plan);
  Gemv op = std::get<Gemv>(plain);
  op.shape.residual = true;
  const LadderAnswer answer = Tables({{row}}).ask(op);
  ASSERT_TRUE(answer.taken);
  EXPECT_EQ(answer.taken->rung, Rung::alike);
  EXPECT_EQ(answer.taken->row.plan, plan);
  expect_words(source_of(*answer.taken).why, {"an epilogue false instead of true"});
  op.shape.in_features = 2048;
  EXPECT_FALSE(Tables({{row}}).ask(op).taken);
}

TEST(TunedLadder, RowsOfOtherProblemsServeNobody) {
  const Problem asked = attention_problem(4096);
  const Plan plan = model_choice(asked);
  for (const auto& change : std::vector<std::function<void(AttentionDecode&)>>{
           [](AttentionDecode& op) { op.shape.tokens = 8192; },
           [](AttentionDecode& op) { op.shape.batch = 2; },
           [](AttentionDecode& op) { op.dtype = DType::bf16; },
           [](AttentionDecode& op) { op.shape.recent_tokens = 16; },
           [](AttentionDecode& op) { op.shape.sinks = 4; },
           [](AttentionDecode& op) { op.shape.query_tokens = 4; },
           [](AttentionDecode& op) { op.shape.query_heads *= 2; },
           [](AttentionDecode& op) { op.shape.head_dim = 64; },
           [](AttentionDecode& op) { op.values.index_bits = 6; }}) {
    Problem other = asked;
    change(std::get<AttentionDecode>(other));
    TunedRow row = tuned_row(asked, plan);
    for (int turn = 0; turn < 2; ++turn) {
      row.problem = turn == 0 ? other : asked;
      const LadderAnswer answer = Tables({{row}}).ask(turn == 0 ? asked : other);
      EXPECT_TRUE(!answer.taken && answer.passed.empty()) << to_json(other).dump();
    }
  }
  const TunedRow row = tuned_row(asked, plan);
  for (const char* gpu : {"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H999"}) {
    const LadderAnswer answer = Tables({{of_class(row, gpu)}}).ask(asked);
    EXPECT_TRUE(!answer.taken && answer.passed.empty()) << gpu;
  }
}

TEST(TunedLadder, APlanThatCannotRunIsPassed) {
  const Problem asked = gemv_problem(1, 512, 512);
  std::optional<Plan> invalid;  // of a longer problem
  for (const Plan& plan : some_plans(gemv_problem(1, 512, 1024), 0)) {
    if (!check(plan, asked, h200()).ok) invalid = plan;
  }
  ASSERT_TRUE(invalid);
  const TunedRow exact = tuned_row(asked, *invalid);
  const LadderAnswer alone = Tables({{exact}}).ask(asked);
  EXPECT_EQ(taken(alone), "");
  expect_words(alone.passed.at(0).refused, {"cannot run here"});
  const TunedRow sound = tuned_row(asked, model_choice(asked));
  EXPECT_EQ(taken(Tables({{exact}, {sound}}).ask(asked)), "exact t1:2");
  EXPECT_EQ(taken(Tables({{exact, with_codes(sound, "zipf:1")}}).ask(asked)), "codes t0:3");
}

// Whatever the tables contain, in whatever order, the plan that is taken can run.
TEST(TunedLadder, WhatIsTakenCanRunAndDoesNotDependOnTheOrderOfRows) {
  std::mt19937_64 random(5);
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  const std::vector<std::int64_t> sizes{256, 264, 512, 1000, 1024};
  std::vector<Plan> plans;
  for (const std::int64_t size : sizes) {
    for (const Plan& plan : some_plans(gemv_problem(1, size, 1264 - size), 12)) {
      plans.push_back(plan);
    }
  }
  int served = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<TunedRow> rows;
    for (int i = 0; i < 6; ++i) {
      const Problem problem = gemv_problem(1, random() % 4 == 0 ? one_of(sizes) : 512, 512);
      TunedRow row = tuned_row(problem, one_of(plans), static_cast<double>(i + 1));
      row.gpu = random() % 4 == 0 ? "NVIDIA H100 80GB HBM3" : test::kTunedGpu;
      row.policy.codes = fmt::format("zipf:{}", 1 + random() % 5);
      rows.push_back(std::move(row));
    }
    const Problem asked = gemv_problem(1, 512, 512);
    std::string text = table_text({rows});
    const std::string names = [&] {
      const LadderAnswer answer = Tables({rows}).ask(asked);
      if (!answer.taken) return std::string();
      ++served;
      EXPECT_TRUE(check(answer.taken->row.plan, asked, h200()).ok);
      return plan_name(answer.taken->row.plan);
    }();
    // The lines in reverse order.
    const TunedTable sorted = read_table(text, "t");
    text = "{\"vqgen_tuned\":1}\n";
    for (auto row = sorted.rows.rbegin(); row != sorted.rows.rend(); ++row) {
      text += to_json(*row).dump() + '\n';
    }
    TunedTables reversed;
    reversed.add("r", text);
    const LadderAnswer again = look_up(reversed, config_of(asked), h200());
    EXPECT_EQ(again.taken ? plan_name(again.taken->row.plan) : "", names);
  }
  EXPECT_GT(served, 5);
}

TEST(TunedLadder, TimesOfACpuAreNeverTaken) {
  const Problem asked = gemv_problem(1, 4096, 4096);
  const Plan plan = model_choice(asked);
  for (const char* timer : {"cpu", "", "replay"}) {
    TunedRow exact = tuned_row(asked, plan, 1);
    exact.policy.timer = timer;
    const LadderAnswer answer = Tables({{exact, with_codes(exact, "zipf:1")}}).ask(asked);
    EXPECT_EQ(taken(answer), "");
    ASSERT_EQ(answer.passed.size(), 2u);
    for (const Neighbour& each : answer.passed) expect_words(each.refused, {"timed by", timer});
    EXPECT_EQ(taken(Tables({{exact}, {tuned_row(asked, plan)}}).ask(asked)), "exact t1:2");
  }
}

TEST(TunedLadder, FieldsThatTheConfigFixesMustBeThePlans) {
  const Problem problem = gemv_problem(1, 1024, 1024);
  const Plan plan = some_plans(problem, 0).back();
  const int threads = to_json(plan)["threads"].get<int>();
  const Tables tables({{tuned_row(problem, plan)}});
  const auto fixed = [&](int wanted) {
    return tables.ask(problem, "uniform", Json{{"threads", wanted}}.dump());
  };
  EXPECT_EQ(taken(fixed(threads)), "exact t0:2");
  const LadderAnswer other = fixed(threads == 64 ? 128 : 64);
  EXPECT_EQ(taken(other), "");
  expect_words(other.passed.at(0).refused, {"fixes fields"});
  expect_words(message_of([&] { tables.ask(problem, "uniform", R"({"threadz": 1})"); }),
               {"threadz"});
}

// A row of another dataflow lacks the field; the config's own dataflow is then looked up.
TEST(TunedLadder, AFieldOfAnotherDataflowPassesTheRow) {
  const Problem problem = gemv_problem(1, 1024, 1024);
  const Tables tables({{tuned_row(problem, LinearSimt{.threads = 128, .chunk_columns = 512})}});
  for (const char* fixed : {R"({"fragment_rows": 4})", R"({"dataflow": "mma"})"}) {
    const LadderAnswer answer = tables.ask(problem, "uniform", fixed);
    EXPECT_EQ(taken(answer), "");
    expect_words(answer.passed.at(0).refused, {"fixes fields"});
  }
}

TEST(TunedLadder, AllRowsAreToldWhereTheyAreAskedFor) {
  const Problem problem = gemv_problem(1, 4096, 4096);
  const Plan plan = model_choice(problem);
  const Tables tables({{tuned_row(problem, plan), with_codes(tuned_row(problem, plan), "zipf:1"),
                        with_codes(tuned_row(problem, plan), "zipf:2")}});
  EXPECT_TRUE(tables.ask(problem).passed.empty());
  const LadderAnswer all = look_up(tables.get(), config_of(problem), h200(), {.all = true});
  EXPECT_EQ(all.taken->rung, Rung::exact);
  ASSERT_EQ(all.passed.size(), 2u);
  EXPECT_EQ(all.passed[0].differs, "codes zipf:1 instead of uniform");
  EXPECT_EQ(all.passed[1].differs, "codes zipf:2 instead of uniform");
  EXPECT_EQ(all.passed[1].refused, "an earlier row was taken");
}

TEST(TunedLadder, RowsAreFoundHoweverTheyAreWritten) {
  Problem paged = attention_problem(2048);
  std::get<AttentionDecode>(paged).shape.page_tokens = 16;
  for (const auto& [problem, like] :
       {std::pair(gemv_problem(1, 1024, 1024), gemv_problem(1, 1024, 1024)),
        {attention_problem(2048), paged}}) {
    for (const std::string& line : test::other_texts(tuned_row(problem, model_choice(problem)))) {
      TunedTables tables;
      tables.add("t", "{ \"vqgen_tuned\" : 1 }\n" + line + '\n');
      EXPECT_EQ(taken(look_up(tables, config_of(problem), h200())), "exact t:2") << line;
      EXPECT_TRUE(look_up(tables, config_of(like), h200()).taken) << line;
    }
  }
}

TEST(TunedLadder, DamageIsMetWhereTheTableIsAdded) {
  const Problem problem = gemv_problem(1, 1024, 1024);
  const TunedRow row = tuned_row(problem, model_choice(problem));
  std::string text = table_text({{row, with_codes(row, "zipf:1")}});
  text[text.find("\"time_us\":10") + 10] = '-';
  TunedTables strict;
  expect_words(message_of([&] { strict.add("bad", text); }), {"bad:2"});
  TunedTables lenient(Damage::skip);
  lenient.add("bad", text);
  expect_words(lenient.warning(), {"bad:2"});
  EXPECT_EQ(taken(look_up(lenient, config_of(problem), h200())), "codes bad:3");
  lenient.add("good", table_text({{row}}));
  EXPECT_EQ(taken(look_up(lenient, config_of(problem), h200())), "exact good:2");
  const std::string cut = text.substr(0, text.size() - 5);
  TunedTables skipping(Damage::skip);
  skipping.add("cut", cut);
  EXPECT_TRUE(skipping.empty());
  expect_words(skipping.warning(), {"cut:3", "cut off"});
  expect_words(message_of([&] { strict.add("cut", cut); }), {"cut:3"});
  expect_words(message_of([&] { strict.add_file("none.jsonl"); }), {"none.jsonl"});
  const std::string line = to_json(row).dump() + '\n';
  const std::string twice = "{\"vqgen_tuned\":1}\n" + line + line;
  expect_words(message_of([&] { strict.add("twice", twice); }), {"twice:3", "of line 2"});
}

}  // namespace
}  // namespace vqgen

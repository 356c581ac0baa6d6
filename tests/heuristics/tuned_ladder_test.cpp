// The ladder: which row a plan is borrowed from, and that no plan is taken that cannot run or that
// the cost model expects to lose.
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
  EXPECT_FALSE(answer.own) << "an exact row needs no search";
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

TEST(TunedLadder, TheOtherElementTypeServesBeforeOtherSizes) {
  const Problem wanted = attention_problem(4096);
  Problem twin = wanted;
  std::get<AttentionDecode>(twin).dtype = DType::bf16;
  const Plan plan = model_choice(wanted);
  const TunedRow other = tuned_row(twin, plan);
  const TunedRow larger = tuned_row(attention_problem(8192), plan);
  const LadderAnswer answer = Tables({{larger, other}}).ask(wanted);
  EXPECT_EQ(answer.taken->rung, Rung::dtype);
  expect_words(source_of(*answer.taken).why, {"dtype bf16 instead of f16"});
  EXPECT_EQ(Tables({{larger, with_codes(tuned_row(wanted, plan), "zipf:1"), other}})
                .ask(wanted)
                .taken->rung,
            Rung::codes);
  EXPECT_EQ(taken(Tables({{of_class(other, "h100")}}).ask(wanted)), "");
}

TEST(TunedLadder, TokensWithinAFactorOfTwoTheLargerFirst) {
  const Plan plan = model_choice(attention_problem(4096));
  const auto answer_of = [&](const std::vector<std::int64_t>& tokens, std::int64_t asked) {
    std::vector<TunedRow> rows;
    for (const std::int64_t each : tokens) rows.push_back(tuned_row(attention_problem(each), plan));
    const LadderAnswer answer = Tables({rows}).ask(attention_problem(asked));
    const auto& row = std::get<AttentionDecode>(answer.taken->row.problem);
    return fmt::format("{} {}", enum_name(answer.taken->rung), row.shape.tokens);
  };
  EXPECT_EQ(answer_of({2048, 8192}, 4096), "bucket 8192");
  EXPECT_EQ(answer_of({2048, 8192}, 4095), "bucket 2048");
  EXPECT_EQ(answer_of({2048, 6000, 8192}, 4096), "bucket 6000");
  EXPECT_EQ(answer_of({2048}, 4096), "bucket 2048");
  EXPECT_EQ(answer_of({2048}, 4097), "nearest 2048");
  EXPECT_EQ(answer_of({8192}, 4096), "bucket 8192");
  EXPECT_EQ(answer_of({8193}, 4096), "nearest 8193");
}

TEST(TunedLadder, OtherSizesServeOnlyWhereTheModelAgrees) {
  const Problem asked = gemv_problem(1, 4096, 4096);
  const std::vector<RankedPlan> ranked = rank(asked, h200(), {});
  const Plan good = ranked.front().plan;
  const Plan bad = ranked.back().plan;
  ASSERT_GT(ranked.back().cost.us, 2 * ranked.front().cost.us);
  const auto at = [&](std::int64_t out, std::int64_t in, const Plan& plan) {
    return Tables({{tuned_row(gemv_problem(1, out, in), plan)}}).ask(asked);
  };
  EXPECT_EQ(taken(at(8192, 4096, good)), "nearest t0:2");
  ASSERT_TRUE(std::holds_alternative<LinearLut>(good));  // whose splits follow from the columns
  expect_words(at(8192, 2048, good).passed.at(0).refused, {" splits here, ", "measured"});
  EXPECT_EQ(taken(at(16384, 4096, good)), "nearest t0:2");
  EXPECT_EQ(taken(at(16640, 4096, good)), "");  // more than a factor of 4
  EXPECT_EQ(taken(at(8192, 9216, good)), "");
  const LadderAnswer refused = at(8192, 4096, bad);
  EXPECT_EQ(taken(refused), "");
  ASSERT_EQ(refused.passed.size(), 1u);
  expect_words(refused.passed[0].refused, {"expected to take", "1.12"});
  EXPECT_EQ(refused.own, std::optional(good));
  // The model also judges rows of rung bucket; exact ones are not judged.
  const TunedRow two = tuned_row(gemv_problem(2, 4096, 4096), bad);
  EXPECT_EQ(taken(Tables({{two}}).ask(asked)), "");
  EXPECT_EQ(taken(Tables({{tuned_row(asked, bad)}}).ask(asked)), "exact t0:2");
  // A nearer row goes first, and a row of other sizes goes after a row of other m.
  const TunedRow far = tuned_row(gemv_problem(1, 8192, 4096), good);
  const TunedRow near = tuned_row(gemv_problem(1, 5120, 4096), good);
  EXPECT_EQ(Tables({{far}, {near}}).ask(asked).taken->found.where, "t1:2");
  const TunedRow rows = tuned_row(gemv_problem(2, 4096, 4096), good);
  EXPECT_EQ(taken(Tables({{near}, {rows}}).ask(asked)), "bucket t1:2");
  const Problem attention = attention_problem(4096);
  const TunedRow two_sequences = tuned_row(attention_problem(4096, 2), model_choice(attention));
  EXPECT_EQ(taken(Tables({{two_sequences}}).ask(attention)), "nearest t0:2");
}

TEST(TunedLadder, OtherSizesOfWhatHasNoModelAreNotBelieved) {
  const auto decode = [](int batch) {
    KvDequantize op;
    op.shape = {.batch = batch, .kv_heads = 8, .head_dim = 128, .tokens = 4096};
    op.keys = op.values = find_format("million-d4b8", "test");
    return op;
  };
  const LadderAnswer answer =
      Tables({{tuned_row(decode(2), model_choice(decode(1)))}}).ask(decode(1));
  EXPECT_EQ(taken(answer), "");
  expect_words(answer.passed.at(0).refused, {"knows nothing of its dataflow"});
}

TEST(TunedLadder, WhatIsNoSizeMustBeEqual) {
  const Problem asked = attention_problem(4096);
  const Plan plan = model_choice(asked);
  for (const auto& change : std::vector<std::function<void(AttentionDecode&)>>{
           [](AttentionDecode& op) { op.shape.recent_tokens = 16; },
           [](AttentionDecode& op) { op.shape.sinks = 4; },
           [](AttentionDecode& op) { op.shape.query_tokens = 4; },
           [](AttentionDecode& op) { op.shape.query_heads *= 2; },
           [](AttentionDecode& op) { op.shape.head_dim = 64; },
           [](AttentionDecode& op) { op.dtype = DType::bf16, op.shape.tokens = 8192; },
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
}

TEST(TunedLadder, AnInvalidNeighbourIsNeverBorrowed) {
  // Plans of the long row that the short one cannot run.
  const Problem asked = gemv_problem(1, 512, 512);
  const Problem near = gemv_problem(1, 512, 1024);
  std::optional<Plan> invalid;
  for (const Plan& plan : some_plans(near, 0)) {
    if (!check(plan, asked, h200()).ok) invalid = plan;
  }
  ASSERT_TRUE(invalid);
  const TunedRow first = tuned_row(near, *invalid);
  const LadderAnswer alone = Tables({{first}}).ask(asked);
  EXPECT_EQ(taken(alone), "");
  expect_words(alone.passed.at(0).refused, {"cannot run here"});
  const TunedRow next = tuned_row(gemv_problem(1, 2048, 512), model_choice(asked));
  EXPECT_EQ(taken(Tables({{first, next}}).ask(asked)).substr(0, 8), "nearest ");
  // An invalid exact row is not taken; another table's row with this key goes before other sizes.
  const TunedRow exact = tuned_row(asked, *invalid);
  EXPECT_EQ(taken(Tables({{exact}}).ask(asked)), "");
  const TunedRow sound = tuned_row(asked, model_choice(asked));
  EXPECT_EQ(taken(Tables({{exact, next}, {sound}}).ask(asked)), "exact t1:2");
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
      const Problem problem = gemv_problem(1 + static_cast<int>(random() % 3), one_of(sizes), 512);
      TunedRow row = tuned_row(problem, one_of(plans), static_cast<double>(i + 1));
      row.gpu = random() % 4 == 0 ? "NVIDIA H100 80GB HBM3" : test::kTunedGpu;
      row.policy.codes = random() % 2 == 0 ? "uniform" : "zipf:1";
      rows.push_back(std::move(row));
    }
    const Problem asked = gemv_problem(1 + static_cast<int>(random() % 2), one_of(sizes), 512);
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

TEST(TunedLadder, EightOfOtherSizesAreTried) {
  const Problem asked = gemv_problem(1, 4096, 4096);
  const std::vector<RankedPlan> ranked = rank(asked, h200(), {});
  const auto with_bad = [&](std::int64_t bad) {
    std::vector<TunedRow> rows{tuned_row(gemv_problem(1, 8192, 4096), ranked.front().plan)};
    for (std::int64_t i = 1; i <= bad; ++i) {
      rows.push_back(tuned_row(gemv_problem(1, 4096 + 64 * i, 4096), ranked.back().plan));
    }
    return Tables({rows});
  };
  EXPECT_TRUE(with_bad(7).ask(asked).taken);
  EXPECT_FALSE(with_bad(8).ask(asked).taken);
  const LadderAnswer all = look_up(with_bad(8).get(), config_of(asked), h200(), {.all = true});
  EXPECT_FALSE(all.taken);
  ASSERT_EQ(all.passed.size(), 9u);
  expect_words(all.passed.back().refused, {"8 nearer ones"});
}

TEST(TunedLadder, TimesOfACpuAreNeverTaken) {
  const Problem asked = gemv_problem(1, 4096, 4096);
  const Plan plan = model_choice(asked);
  for (const char* timer : {"cpu", "", "replay"}) {
    TunedRow exact = tuned_row(asked, plan, 1);
    exact.policy.timer = timer;
    TunedRow bucket = tuned_row(gemv_problem(2, 4096, 4096), plan, 1);
    bucket.policy.timer = timer;
    const LadderAnswer answer = Tables({{exact, with_codes(exact, "zipf:1"), bucket,
                                         of_class(exact, "NVIDIA H100 80GB HBM3")}})
                                    .ask(asked);
    EXPECT_EQ(taken(answer), "");
    ASSERT_EQ(answer.passed.size(), 4u);
    for (const Neighbour& each : answer.passed) expect_words(each.refused, {"timed by", timer});
    EXPECT_FALSE(answer.own) << "which needs no search";
    EXPECT_EQ(taken(Tables({{exact}, {tuned_row(asked, plan)}}).ask(asked)), "exact t1:2");
  }
}

TEST(TunedLadder, AnotherClassServesWithinItsArchitecture) {
  const Problem problem = gemv_problem(1, 4096, 4096);
  const TunedRow row = tuned_row(problem, model_choice(problem));
  const auto from = [&](const std::string& gpu) {
    return taken(Tables({{of_class(row, gpu)}}).ask(problem));
  };
  EXPECT_EQ(from("NVIDIA H100 80GB HBM3"), "family t0:2");
  EXPECT_EQ(from("NVIDIA A100-SXM4-40GB"), "");
  EXPECT_EQ(from("NVIDIA H999"), "");
  // A row of another GPU class goes after rows of the own class.
  const TunedRow near = tuned_row(gemv_problem(1, 5120, 4096), model_choice(problem));
  EXPECT_EQ(taken(Tables({{of_class(row, "NVIDIA H100 80GB HBM3")}, {near}}).ask(problem)),
            "nearest t1:2");
  EXPECT_EQ(taken(Tables({{of_class(near, "NVIDIA H100 80GB HBM3")}}).ask(problem)), "");
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

TEST(TunedLadder, AllNeighboursAreToldWhereTheyAreAskedFor) {
  const Problem problem = gemv_problem(1, 4096, 4096);
  const Plan plan = model_choice(problem);
  const Tables tables({{tuned_row(problem, plan), with_codes(tuned_row(problem, plan), "zipf:1"),
                        tuned_row(gemv_problem(1, 8192, 4096), plan)}});
  EXPECT_TRUE(tables.ask(problem).passed.empty());
  const LadderAnswer all = look_up(tables.get(), config_of(problem), h200(), {.all = true});
  EXPECT_EQ(all.taken->rung, Rung::exact);
  ASSERT_EQ(all.passed.size(), 2u);
  EXPECT_EQ(all.passed[0].differs, "codes zipf:1 instead of uniform");
  EXPECT_EQ(all.passed[1].differs, "out_features 8192 instead of 4096");
  EXPECT_EQ(all.passed[1].refused, "a nearer row was taken");
}

TEST(TunedLadder, RowsAreFoundHoweverTheyAreWritten) {
  for (const auto& [problem, larger] :
       {std::pair(gemv_problem(1, 1024, 1024), gemv_problem(2, 1024, 1024)),
        {attention_problem(2048), attention_problem(4096)}}) {
    for (const std::string& line : test::other_texts(tuned_row(problem, model_choice(problem)))) {
      TunedTables tables;
      tables.add("t", "{ \"vqgen_tuned\" : 1 }\n" + line + '\n');
      EXPECT_EQ(taken(look_up(tables, config_of(problem), h200())), "exact t:2") << line;
      const LadderAnswer near = look_up(tables, config_of(larger), h200(), {.all = true});
      EXPECT_EQ(near.passed.size() + (near.taken ? 1 : 0), 1u) << line;
    }
  }
}

TEST(TunedLadder, RowsBySequenceDoNotServeABatchOfLongAndShortOnes) {
  const Problem problem = attention_problem(65536, 32), longer = attention_problem(131072, 32);
  const Tables tables({{tuned_row(problem, model_choice(problem))}});
  EXPECT_EQ(taken(tables.ask(attention_problem(49152, 32))), "bucket t0:2");
  expect_words(tables.ask(longer).passed.front().refused, {"each sequence by itself"});
  for (const char* asked : {R"({"schedule": "per_sequence"})", R"({"splits": 1})",
                            R"({"dataflow": "mma", "splits": 1})"})
    EXPECT_EQ(taken(tables.ask(longer, "uniform", asked)), "bucket t0:2") << asked;
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

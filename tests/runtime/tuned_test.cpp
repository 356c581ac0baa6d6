// Plans from tuned tables: when a row changes the plan and when it does not, what is reported, and
// where tables are found.
#include "core/files/files.h"
#include "runtime/environment.h"
#include "runtime/prepare.h"
#include "tests/cache/fixtures.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

using test::config_of;
using test::gemv_problem;
using test::tuned_row;

class Tuned : public testing::Test {
 protected:
  Tuned() : own_(plan_for(config_, gpu_)) {
    for (const Plan& plan : test::some_plans(problem_, 0)) {
      if (!(plan == own_) && is_modelled(plan)) other_ = plan;
    }
  }
  Planned planned(const TunedRow& row, Chooser chooser = kDefaultChooser) {
    TunedTables tables;
    tables.add("t.jsonl", table_text({{row}}));
    return plan_with(config_, gpu_, access_counts_of(config_),
                     {.chooser = chooser, .tables = &tables});
  }

  // The threads of a plan of any dataflow.
  static int threads_of(const Plan& plan) {
    return std::visit([](const auto& each) { return each.threads; }, plan);
  }

  Problem problem_ = gemv_problem(1, 1024, 1024);
  Config config_ = config_of(problem_);
  GpuSpec gpu_ = find_gpu("h200");
  Plan own_;
  Plan other_;  // the last of the space
  TempFolder folder_;
};

TEST_F(Tuned, AnExactRowIsThePlan) {
  const Planned found = planned(tuned_row(problem_, other_));
  EXPECT_EQ(found.plan, other_);
  EXPECT_EQ(found.from.rung, Rung::exact);
  expect_words(found.from.why, {"t.jsonl:2", "10.00 us"});
  EXPECT_EQ(to_json(found.from)["rung"], "exact");
}

TEST_F(Tuned, ARowThatCannotRunIsNot) {
  const Planned found = planned(tuned_row(problem_, LinearSimt{.threads = 48}));
  EXPECT_EQ(found.plan, own_);
  EXPECT_EQ(found.from.rung, Rung::model);
  expect_words(found.from.why, {"1 tuned rows do not serve", "cost model"});
}

TEST_F(Tuned, WithoutTablesItIsTheChoosers) {
  Planned found = plan_with(config_, gpu_, {});
  EXPECT_EQ(found.plan, own_);
  EXPECT_EQ(found.from.rung, Rung::model);
  found = plan_with(config_, gpu_, {}, {.chooser = Chooser::rules});
  EXPECT_EQ(found.from.rung, Rung::rules);
  KvDequantize op;  // which has no model
  op.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 4096};
  op.keys = op.values = find_format("million-d4b8", "test");
  EXPECT_EQ(plan_with(config_of(op), gpu_, {}).from.rung, Rung::rules);
  const Planned far = planned(tuned_row(gemv_problem(1, 64, 64, "aqlm-1x8"), LinearSimt{}));
  EXPECT_EQ(far.plan, own_);
  expect_words(far.from.why, {"no tuned row is of this problem"});
}

TEST_F(Tuned, FieldsOfTheConfigGoOverTables) {
  const int threads = threads_of(other_);
  config_.plan = Json{{"threads", threads}};
  Planned found = planned(tuned_row(problem_, other_));
  EXPECT_EQ(found.plan, other_);
  EXPECT_EQ(found.from.rung, Rung::exact);
  config_.plan = Json{{"threads", threads == 64 ? 128 : 64}};
  found = planned(tuned_row(problem_, other_));
  EXPECT_EQ(threads_of(found.plan), threads == 64 ? 128 : 64);
  EXPECT_EQ(found.from.rung, Rung::override);
  EXPECT_EQ(found.plan, plan_for(config_, gpu_));
}

// Four entries of 256 are hot, so that place() has something to do.
class TunedAccessCounts : public Tuned {
 protected:
  TunedAccessCounts() {
    std::vector<std::int64_t> counts(256, 1);
    std::fill_n(counts.begin(), 4, 200);
    profile_ = profile_of({{counts}, {counts}}, 2);
    profile_.operand = Operand::weights;
    profile_.format = as_linear(problem_)->weights;
    config_.access_counts = (folder_.path() / "p.json").string();
    publish_text(*config_.access_counts, access_counts_text({profile_}));
    for (const Plan& plan : test::some_plans(problem_, 0)) {
      placed_ = place(plan, problem_, gpu_, std::span(&profile_, 1)).plan;
      other_ = plan;
      if (!(placed_ == other_)) break;
    }
    row_ = tuned_row(problem_, other_);
    row_.policy.codes = codes_of(config_);
  }
  void SetUp() override { ASSERT_FALSE(placed_ == other_) << "or there is nothing to see"; }

  AccessCounts profile_;
  TunedRow row_;
  Plan placed_;
};

TEST_F(TunedAccessCounts, APlanMeasuredWithTheseCodesIsTakenAsItWasMeasured) {
  EXPECT_EQ(row_.policy.codes.size(), std::string("profile:0123456789ab").size());
  const Planned found = planned(row_);
  EXPECT_EQ(found.from.rung, Rung::exact);
  EXPECT_EQ(found.plan, other_);
  ASSERT_EQ(found.placements.size(), 1u);
  EXPECT_EQ(found.placements[0].placement, *placement_of(other_, Operand::weights));
  expect_words(found.placements[0].reasons.at(0), {"measured with these codes"});
  // It is compiled once, though the kernel leaves room for entries in registers.
  TunedTables tables;
  tables.add("t.jsonl", table_text({{row_}}));
  test::CountingBackend backend;
  EXPECT_EQ(prepare(config_, gpu_, backend, nullptr, {.tables = &tables}).plan, other_);
  EXPECT_EQ(backend.compilations, 1);
}

TEST_F(TunedAccessCounts, PlacesOverWhatWasMeasuredWithOtherCodes) {
  row_.policy.codes = "uniform";
  const Planned found = planned(row_);
  EXPECT_EQ(found.from.rung, Rung::codes);
  EXPECT_EQ(found.plan, placed_);
}

TEST_F(TunedAccessCounts, ThePapersBoundariesAreThoseThatWereAskedFor) {
  TunedTables tables;
  tables.add("t.jsonl", table_text({{row_}}));
  PlanOptions options{.tables = &tables};
  options.place.strategy = Strategy::paper;
  const Planned found = plan_with(config_, gpu_, access_counts_of(config_), options);
  EXPECT_EQ(found.from.rung, Rung::exact);
  EXPECT_EQ(found.placements.at(0).reasons.empty(), false);
  EXPECT_EQ(found.placements.at(0).reasons[0].find("measured with these codes"), std::string::npos);
}

TEST_F(Tuned, WithoutAccessCountsUniformCodesAreAskedFor) {
  EXPECT_EQ(codes_of(config_), "uniform");
}

TEST_F(Tuned, PreparedKernelsSayWhereTheirPlanIsFrom) {
  TunedTables tables;
  tables.add("t.jsonl", table_text({{tuned_row(problem_, other_)}}));
  test::CountingBackend backend;
  const Prepared result = prepare(config_, gpu_, backend, nullptr, {.tables = &tables});
  EXPECT_EQ(result.plan, other_);
  EXPECT_EQ(result.from.rung, Rung::exact);
}

TEST_F(Tuned, TablesAreFoundInTheirPlacesInOrder) {
  const std::filesystem::path data = folder_.path() / "data";
  const std::filesystem::path inner = data / "vqgen" / "tuned";
  std::filesystem::create_directories(inner);
  for (const char* name : {"b.jsonl", "a.jsonl", "notes.txt"}) {
    publish_text(inner / name, table_text({}));
  }
  using Paths = std::vector<std::filesystem::path>;
  TunedEnvironment environment{.xdg_data_home = data.string(), .home = "/nowhere"};
  EXPECT_EQ(table_files(environment), (Paths{inner / "a.jsonl", inner / "b.jsonl"}));
  environment.vqgen_tuned_path = "";
  EXPECT_EQ(table_files(environment).size(), 2u);
  environment.vqgen_tuned_path = "x.jsonl::" + inner.string();
  EXPECT_EQ(table_files(environment), (Paths{"x.jsonl", inner / "a.jsonl", inner / "b.jsonl"}));
  expect_words(message_of([&] { find_tables(environment, Damage::fail); }), {"x.jsonl"});
  expect_words(find_tables(environment, Damage::skip)->warning(), {"x.jsonl"});
  EXPECT_EQ(default_tuned_dir({.home = "/h"}),
            std::filesystem::path("/h/.local/share/vqgen/tuned"));
  EXPECT_EQ(default_tuned_dir({.xdg_data_home = "relative"}), std::nullopt);
  EXPECT_TRUE(table_files({.home = (folder_.path() / "none").string()}).empty());
}

}  // namespace
}  // namespace vqgen

// Plans from tuned tables: when a row changes the plan and when it does not, what is said of it,
// and where tables are found.
#include "core/files.h"
#include "runtime/prepare.h"
#include "runtime/tuned_places.h"
#include "tests/cache/fixtures.h"
#include "tests/core/hotness_samples.h"
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
    return plan_with(config_, gpu_, hotness_of(config_), {.chooser = chooser, .tables = &tables});
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
  const Planned found = planned(tuned_row(problem_, LinearPlan{.threads = 48}));
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
  const Config attention = config_of(test::attention_problem(4096));
  EXPECT_EQ(plan_with(attention, gpu_, {}).from.rung, Rung::rules);  // which has no model
  const Planned far = planned(tuned_row(gemv_problem(1, 64, 64, "aqlm-1x8"), LinearPlan{}));
  EXPECT_EQ(far.plan, own_);
  expect_words(far.from.why, {"no tuned row is near"});
}

TEST_F(Tuned, FieldsOfTheConfigGoOverTables) {
  const int threads = std::get<LinearPlan>(other_).threads;
  config_.plan = Json{{"threads", threads}};
  Planned found = planned(tuned_row(problem_, other_));
  EXPECT_EQ(found.plan, other_);
  EXPECT_EQ(found.from.rung, Rung::exact);
  config_.plan = Json{{"threads", threads == 64 ? 128 : 64}};
  found = planned(tuned_row(problem_, other_));
  EXPECT_EQ(std::get<LinearPlan>(found.plan).threads, threads == 64 ? 128 : 64);
  EXPECT_EQ(found.from.rung, Rung::override);
  EXPECT_EQ(found.plan, plan_for(config_, gpu_));
}

TEST_F(Tuned, HotnessPlacesOverATunedPlanAndAsksForItsOwnCodes) {
  EXPECT_EQ(codes_of(config_), "uniform");
  std::vector<std::int64_t> counts(256, 1);
  std::fill_n(counts.begin(), 4, 200);
  HotnessProfile profile = profile_of({{counts}, {counts}}, 2);
  profile.operand = Operand::weights;
  profile.format = as_linear(problem_)->weights;
  config_.hotness = (folder_.path() / "p.json").string();
  publish_text(*config_.hotness, hotness_text({profile}));
  const std::string codes = codes_of(config_);
  EXPECT_EQ(codes.size(), std::string("profile:0123456789ab").size());
  TunedRow row = tuned_row(problem_, other_);
  row.policy.codes = codes;
  const Planned found = planned(row);
  EXPECT_EQ(found.from.rung, Rung::exact);
  EXPECT_EQ(found.placements.size(), 1u);
  EXPECT_EQ(std::get<LinearPlan>(found.plan).dataflow, std::get<LinearPlan>(other_).dataflow);
  row.policy.codes = "uniform";
  EXPECT_EQ(planned(row).from.rung, Rung::codes);
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

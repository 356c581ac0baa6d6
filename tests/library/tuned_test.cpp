// Plans from tuned tables in the library: each size looks up its own, and the description says so.
#include "tests/heuristics/tuned_rows.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

using vqgen::test::attention_problem;
using vqgen::test::some_plans;
using vqgen::test::tuned_row;

std::shared_ptr<TunedTables> table_of(std::vector<TunedRow> rows) {
  auto tables = std::make_shared<TunedTables>(Damage::skip);
  tables->add("t.jsonl", table_text({std::move(rows)}));
  return tables;
}

Json described(FakeRuntime& fake, const Problem& problem) {
  const Outcome outcome = fake.prepare(to_json(problem));
  return parse_json(outcome.record->current().description, "description");
}

TEST(LibraryTuned, EachSizeLooksUpItsOwn) {
  const Problem large = attention_problem(8192);
  const Plan fallback = choose(large, find_gpu("h200"));
  Plan tuned;
  for (const Plan& plan : some_plans(large, 0)) {
    if (!(plan == fallback)) tuned = plan;
  }
  FakeRuntime fake({.max_buckets = 3, .tables = table_of({tuned_row(large, tuned)})});
  const Json json = described(fake, large);
  const Json& buckets = json["buckets"];
  ASSERT_GE(buckets.size(), 2u);
  const Json& own = buckets.back();
  EXPECT_EQ(own["plan_from"]["rung"], "exact");
  EXPECT_EQ(own["plan"], to_json(tuned));
  expect_words(own["plan_from"]["why"].get<std::string>(), {"t.jsonl:2"});
  EXPECT_EQ(buckets.front()["most"], 1024);
  EXPECT_EQ(buckets.front()["plan_from"]["rung"], "model");
  const auto listed = fake.registry().enumerate(to_json(large).dump(), 8192, 8192);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].from.rung, Rung::exact);
}

TEST(LibraryTuned, WithoutTablesTheChooserIsNamed) {
  FakeRuntime fake({.max_buckets = 1});
  const Json json = described(fake, vqgen::test::gemv_problem(1, 1024, 1024));
  EXPECT_EQ(json["buckets"].at(0)["plan_from"]["rung"], "model");
  EXPECT_FALSE(json.contains("tuned_warning"));
}

TEST(LibraryTuned, ADamagedRowIsAWarningAndNoRow) {
  const Problem problem = vqgen::test::gemv_problem(1, 1024, 1024);
  std::string text = table_text({{tuned_row(problem, choose(problem, find_gpu("h200")))}});
  text.replace(text.find("\"noise\":0."), 10, "\"noise\":7.");
  auto tables = std::make_shared<TunedTables>(Damage::skip);
  tables->add("bad.jsonl", text);
  FakeRuntime fake({.max_buckets = 1, .tables = tables});
  const Json json = described(fake, problem);
  EXPECT_EQ(json["buckets"].at(0)["plan_from"]["rung"], "model");
  expect_words(json["tuned_warning"].get<std::string>(), {"bad.jsonl:2", "noise"});
}

TEST(LibraryTuned, ABaselineIsCalledOne) {
  FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 1});
  std::atomic<bool> go{false};
  fake.backend->on_compile = [&](const KernelSource& source) {
    if (source.entries.front().name.find("_simt_") != std::string::npos) return;
    while (!go) std::this_thread::yield();
  };
  const Outcome outcome = fake.prepare(gemv_json());
  const Json json = parse_json(outcome.record->description, "description");
  expect_words(json["buckets"].at(0)["plan_from"]["why"].get<std::string>(), {"baseline"});
  go = true;
}

}  // namespace
}  // namespace vqgen::library::test

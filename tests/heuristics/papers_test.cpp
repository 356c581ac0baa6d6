// Methods of papers: choosing takes none of them, and those who ask for one get it.
#include "heuristics/papers/papers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/plan/plan_name.h"
#include "heuristics/space.h"
#include "heuristics/tuned/tables.h"
#include "tests/golden/choices.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

// True if the plan has entries in registers, another fusion than permute, or another form than
// vectorized.
bool has_method(const Plan& plan) {
  return std::visit(
      []<class P>(const P& each) {
        bool found = false;
        for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
          const Member& value = each.*field.member;
          if constexpr (std::is_same_v<Member, Placement>) found |= value.registers > 0;
          if constexpr (std::is_same_v<Member, LinearFusion>) {
            found |= value != LinearFusion::permute;
          }
          if constexpr (std::is_same_v<Member, ScalarForm>) {
            found |= value != ScalarForm::vectorized;
          }
        });
        return found;
      },
      plan);
}

Problem quantize(std::int64_t tokens, int channels, Scales scales) {
  Int8Quantize op;
  op.shape = {.tokens = tokens, .channels = channels, .scales = scales};
  return op;
}

TEST(Papers, TheTestKnowsEachMethod) {
  EXPECT_FALSE(has_method(LinearMma{}));
  EXPECT_FALSE(has_method(ScalarForms{}));
  EXPECT_FALSE(has_method(AttentionMma{.key_codebook = all_replicated(256, 16)}));
  EXPECT_TRUE(has_method(LinearMma{.fusion = LinearFusion::registers}));
  EXPECT_TRUE(has_method(LinearMma{.fusion = LinearFusion::shared}));
  EXPECT_TRUE(has_method(AttentionSimt{.value_codebook = {.registers = 1}}));
  EXPECT_TRUE(has_method(ScalarForms{.form = ScalarForm::tiled}));
}

TEST(Papers, NoRecordedChoiceAndNoShippedRowHasOne) {
  int plans = 0;
  for (const auto& [problem, choices] : test::read_choices()) {
    for (const auto& [gpu, name] : choices) {
      if (name.starts_with("refused: ")) continue;
      const Json json = name;
      EXPECT_FALSE(has_method(read_plan_name(JsonCursor(json, gpu)))) << problem << name;
      ++plans;
    }
  }
  EXPECT_GT(plans, 2000);
  for (const ShippedTable& table : shipped_tables()) {
    for (const TunedRow& row : read_table(table.text, table.name).rows) {
      EXPECT_FALSE(has_method(row.plan)) << plan_name(row.plan);
      ++plans;
    }
  }
  EXPECT_GT(plans, 2100);
}

// The space has none unless asked, and those that it then has come after all others.
TEST(Papers, TheSpaceHasThemWhenAsked) {
  for (const char* name : {"h200", "a100", "t4"}) {
    const GpuSpec gpu = find_gpu(name);
    for (const Problem& problem :
         {quantize(4096, 512, Scales::computed), quantize(7, 67, Scales::given),
          test::gemv_problem(1, 1024, 1024)}) {
      const std::vector<Plan> plain = space(problem, gpu, {.most = 0}).plans;
      const std::vector<Plan> all = space(problem, gpu, {.most = 0, .papers = true}).plans;
      EXPECT_TRUE(std::none_of(plain.begin(), plain.end(), has_method));
      ASSERT_GE(all.size(), plain.size());
      EXPECT_TRUE(std::equal(plain.begin(), plain.end(), all.begin()));
      EXPECT_TRUE(std::all_of(all.begin() + std::ssize(plain), all.end(), [&](const Plan& plan) {
        return has_method(plan) && check(plan, problem, gpu).ok;
      }));
      std::map<ScalarForm, int> forms;
      for (const Plan& plan : all) {
        if (const auto* form = std::get_if<ScalarForms>(&plan)) ++forms[form->form];
      }
      EXPECT_EQ(forms.size(), as_scalar(problem) == nullptr ? 0u : 4u);
    }
  }
}

TEST(Papers, AConfigsFieldsAskForOne) {
  const GpuSpec gpu = find_gpu("h200");
  const Problem problem = quantize(65536, 1024, Scales::computed);
  for (const char* fields :
       {R"({"form": "naive"})", R"({"form": "tiled", "threads": 512})", R"({"form": "coarsened"})",
        R"({"form": "coarsened", "tokens": 16})", R"({"vector": 1})"}) {
    const Plan plan = propose(test::config_of(problem, fields), gpu);
    EXPECT_TRUE(has_method(plan)) << fields;
    EXPECT_TRUE(check(plan, problem, gpu).ok) << fields;
  }
  EXPECT_FALSE(has_method(propose(test::config_of(problem, R"({"threads": 512})"), gpu)));
}

// A row that was tuned with one is taken as it is.
TEST(Papers, ATunedRowKeepsItsMethod) {
  const Problem problem = test::gemv_problem(1, 1024, 1024);
  const GpuSpec gpu = find_gpu("h200");
  const Plan bare = LinearMma{.chunk_columns = 512};
  const Plan held = LinearMma{.chunk_columns = 512, .codebook = {.registers = 1}};
  for (const Plan& plan : {with_paper_fusion(bare, problem, gpu), held}) {
    ASSERT_TRUE(check(plan, problem, gpu).ok) << check(plan, problem, gpu).reason;
    ASSERT_TRUE(has_method(plan));
    const LadderAnswer answer = test::Tables({{test::tuned_row(problem, plan)}}).ask(problem);
    ASSERT_TRUE(answer.taken);
    EXPECT_EQ(answer.taken->row.plan, plan);
  }
}

}  // namespace
}  // namespace vqgen

// What a config may fix of the plan: each field of its op's plan, within the declared bounds.
#include "core/plan.h"

#include "tests/core/support.h"

namespace vqgen {
namespace {

Config with_plan(const Json& json, const Json& plan) {
  Config config = read_config(json, "c.json");
  config.plan = plan;
  return config;
}

TEST(PlanOverrides, NothingFixedLeavesThePlanAlone) {
  const Plan plan = AttentionDecodePlan{.threads = 256, .splits = 3};
  EXPECT_EQ(with_overrides(plan, read_config(attention_json(), "c.json")), plan);
}

TEST(PlanOverrides, FixedFieldsReplaceAndOthersStay) {
  const Plan chosen =
      AttentionDecodePlan{.threads = 256, .splits = 3, .key_codebook = all_shared(256)};
  const Config config =
      with_plan(attention_json(),
                {{"threads", 64}, {"tile_tokens", 1}, {"key_codebook", {{"registers", 2}}}});
  const AttentionDecodePlan expected{.threads = 64,
                                     .tile_tokens = 1,
                                     .splits = 3,
                                     .key_codebook = {.registers = 2, .shared = 256}};
  EXPECT_EQ(with_overrides(chosen, config), Plan(expected));

  const Config gemv =
      with_plan(gemv_json(), {{"chunk_columns", 64}, {"codebook", {{"shared", 128}}}});
  EXPECT_EQ(with_overrides(LinearPlan{}, gemv),
            Plan(LinearPlan{.chunk_columns = 64, .codebook = all_shared(128)}));
}

TEST(PlanOverrides, APlanReadsWhatItWrites) {
  const Plan plan =
      AttentionDecodePlan{.threads = 96,
                          .tile_tokens = 8,
                          .splits = 7,
                          .heads_per_block = 2,
                          .lanes_per_token = 16,
                          .stages = 1,
                          .key_codebook = {.registers = 1, .replicated = 4, .copies = 8},
                          .value_codebook = all_replicated(16, 2)};
  EXPECT_EQ(with_overrides(AttentionDecodePlan{}, with_plan(attention_json(), to_json(plan))),
            plan);
}

// Each number of each plan at its bounds, and one past them.
template <class OpPlan>
void try_bounds(const Json& json) {
  for_each_field<OpPlan>([&]<class Member>(const Field<OpPlan, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const auto least = static_cast<std::int64_t>(field.rule.min);
      const auto most = static_cast<std::int64_t>(field.rule.max);
      for (const std::int64_t value : {least, most}) {
        const Plan plan = with_overrides(OpPlan{}, with_plan(json, {{field.name, value}}));
        EXPECT_EQ(std::get<OpPlan>(plan).*field.member, value) << field.name;
      }
      for (const std::int64_t value : {least - 1, most + 1}) {
        expect_words(message_of([&] {
                       with_overrides(OpPlan{}, with_plan(json, {{field.name, value}}));
                     }),
                     {"c.json: /plan/" + std::string(field.name), "whole number from",
                      std::to_string(value)});
      }
    } else {
      std::string words = "must be an object";
      if constexpr (std::is_enum_v<Member>) {
        words = "is none of " + std::string(enum_names<Member>.front()) + ", ";
      }
      expect_words(message_of([&] {
                     with_overrides(OpPlan{}, with_plan(json, {{field.name, "near"}}));
                   }),
                   {"c.json: /plan/" + std::string(field.name), words});
    }
  });
}

TEST(PlanOverrides, KeepTheDeclaredBounds) {
  try_bounds<AttentionDecodePlan>(attention_json());
  try_bounds<LinearPlan>(gemv_json());
}

TEST(PlanOverrides, RefuseWhatThePlanLacks) {
  const auto refuse = [](const Plan& plan, const Json& json, const Json& fixed) {
    return message_of([&] { with_overrides(plan, with_plan(json, fixed)); });
  };
  expect_words(refuse(AttentionDecodePlan{}, attention_json(), {{"chunk_columns", 64}}),
               {"c.json: /plan: unknown field 'chunk_columns'", "tile_tokens"});
  expect_words(refuse(LinearPlan{}, gemv_json(), {{"stages", 2}}),
               {"c.json: /plan: unknown field 'stages'", "chunk_columns"});
  expect_words(refuse(LinearPlan{}, gemv_json(), 3), {"c.json: /plan: must be an object"});
}

}  // namespace
}  // namespace vqgen

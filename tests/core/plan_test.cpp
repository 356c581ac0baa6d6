// What a config may fix of the plan: each field of a dataflow, within the declared bounds, and
// nothing that the dataflow lacks.
#include "core/plan/plan.h"

#include "core/plan/plan_name.h"
#include "tests/core/named_plan.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// A config of an op that the plan's dataflow does.
Json config_json(const Plan& plan) {
  for (const Json& json :
       {attention_json(), gemv_json(), append_json(), decode_json(), merge_json(), scalar_json()}) {
    if (is_plan_of(plan, read_config(json, "c.json").problem)) return json;
  }
  throw std::runtime_error("no config for " + plan_name(plan));
}

TEST(PlanOverrides, NothingFixedLeavesThePlanAlone) {
  const Plan plan = AttentionLanes{.threads = 256, .splits = 3};
  EXPECT_EQ(with_overrides(plan, read_config(attention_json(), "c.json")), plan);
}

TEST(PlanOverrides, FixedFieldsReplaceAndOthersStay) {
  const Plan chosen = AttentionLanes{.threads = 256, .splits = 3, .key_codebook = all_shared(256)};
  const Config config =
      with_plan(attention_json(),
                {{"threads", 64}, {"tile_tokens", 1}, {"key_codebook", {{"registers", 2}}}});
  const AttentionLanes expected{.threads = 64,
                                .tile_tokens = 1,
                                .splits = 3,
                                .key_codebook = {.registers = 2, .shared = 256}};
  EXPECT_EQ(with_overrides(chosen, config), Plan(expected));

  const Config gemv =
      with_plan(gemv_json(), {{"chunk_columns", 64}, {"codebook", {{"shared", 128}}}});
  EXPECT_EQ(with_overrides(LinearLanes{}, gemv),
            Plan(LinearLanes{.chunk_columns = 64, .codebook = all_shared(128)}));
}

TEST(PlanOverrides, APlanReadsWhatItWrites) {
  const Plan plan = AttentionLanes{.threads = 96,
                                   .tile_tokens = 8,
                                   .splits = 7,
                                   .heads_per_block = 2,
                                   .lanes_per_token = 16,
                                   .tiles_in_flight = 1,
                                   .key_codebook = {.registers = 1, .replicated = 4, .copies = 8},
                                   .value_codebook = all_replicated(16, 2)};
  EXPECT_EQ(with_overrides(AttentionLanes{}, with_plan(attention_json(), to_json(plan))), plan);
}

// Each number of the plan at its bounds, and one past them.
template <class P>
void try_bounds(const Json& json) {
  for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const auto least = static_cast<std::int64_t>(field.rule.min);
      const auto most = static_cast<std::int64_t>(field.rule.max);
      for (const std::int64_t value : {least, most}) {
        const Plan plan = with_overrides(P{}, with_plan(json, {{field.name, value}}));
        EXPECT_EQ(std::get<P>(plan).*field.member, value) << field.name;
      }
      for (const std::int64_t value : {least - 1, most + 1}) {
        expect_words(message_of([&] {
                       with_overrides(P{}, with_plan(json, {{field.name, value}}));
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
                     with_overrides(P{}, with_plan(json, {{field.name, "near"}}));
                   }),
                   {"c.json: /plan/" + std::string(field.name), words});
    }
  });
}

TEST(PlanOverrides, KeepTheDeclaredBounds) {
  for_each_dataflow([]<class P>(const P& plan) { try_bounds<P>(config_json(plan)); });
}

TEST(PlanOverrides, RefuseWhatThePlanLacks) {
  const auto refuse = [](const Plan& plan, const Json& json, const Json& fixed) {
    return message_of([&] { with_overrides(plan, with_plan(json, fixed)); });
  };
  expect_words(refuse(AttentionLanes{}, attention_json(), {{"chunk_columns", 64}}),
               {"c.json: /plan/chunk_columns: unknown field", "dataflow lanes has "});
  expect_words(refuse(LinearLanes{}, gemv_json(), {{"tiles_in_flight", 2}}),
               {"c.json: /plan/tiles_in_flight: unknown field", "dataflow lanes has "});
  expect_words(refuse(LinearLanes{}, gemv_json(), {{"codebook", {{"near", 1}}}}),
               {"c.json: /plan/codebook: unknown field 'near'"});
  expect_words(refuse(LinearLanes{}, gemv_json(), 3), {"c.json: /plan", "must be an object"});
}

// Each field of each dataflow, on all that lack it: neither a config nor a name can set it.
TEST(PlanFields, OfOtherDataflowsCannotBeSet) {
  int refused = 0;
  for_each_dataflow([&](const Plan& plan) {
    const Json own = to_json(plan);
    for_each_dataflow([&](const Plan& other) {
      const Json others = to_json(other);
      for (const auto& [field, value] : others.items()) {
        if (own.contains(field)) continue;
        SCOPED_TRACE(std::string(kernel_name(plan)) + " " + field);
        const Config config = with_plan(config_json(plan), {{field, value}});
        EXPECT_FALSE(has_fields(plan, config.plan_cursor()));
        const std::string message = message_of([&] { with_overrides(plan, config); });
        expect_words(message, {"c.json: /plan/" + field + ": unknown field",
                               "dataflow " + std::string(dataflow_name(plan)) + " has "});
        const std::string text = value.is_object()   ? ".shared=1"
                                 : value.is_string() ? "=" + value.get<std::string>()
                                                     : "=" + value.dump();
        expect_words(message_of([&] { named(plan_name(plan) + field + text); }),
                     {"t.jsonl: /plan", "unknown field '" + field + "'"});
        ++refused;
      }
    });
  });
  EXPECT_GT(refused, 100);
}

// What a dataflow fixes or works out is no field of it.
TEST(PlanFields, AreNoneThatADataflowFixes) {
  const std::vector<std::pair<Plan, std::string>> fixed = {
      {AttentionFragments{}, "tile_tokens"},
      {AttentionFragments{}, "lanes_per_token"},
      {AttentionTables{}, "key_codebook"},
      {AttentionTables{}, "lanes_per_token"},
      {AttentionChannels{}, "combine"},
      {AttentionLanes{}, "key_channel_splits"},
      {LinearTables{}, "chunk_columns"},
      {LinearTables{}, "splits"},
      {LinearWarpgroups{}, "fragment_rows"},
      {LinearWarpgroups{}, "fusion"},
      {LinearWarpgroups{}, "warps_along_columns"},
      {LinearBytes{}, "fragment_rows"},
      {LinearBytegroups{}, "outputs_per_warp"},
      {LinearBytes{}, "fusion"},
      {LinearRowgroups{}, "idle_warps"},
      {LinearRowgroups{}, "steps_ahead"},
      {LinearSlices{}, "codebook"},
      {LinearSlices{}, "splits"},
      {LinearSlices{}, "chunk_columns"},
      {AppendLanes{}, "combine"},
      {AppendFragments{}, "warps_along_entries"},
      {AppendFragments{}, "sub_vectors_per_warp"},
      {AppendFragments{}, "norms"},
      {AppendProducts{}, "warps_along_entries"},
      {AppendProducts{}, "norms"}};
  for (const auto& [plan, field] : fixed) {
    EXPECT_FALSE(to_json(plan).contains(field)) << kernel_name(plan) << " " << field;
  }
}

TEST(PlanFields, TellDataflowsApart) {
  const auto has = [](const Plan& plan, const Json& fields) {
    return has_fields(plan, JsonCursor(fields, "c.json", "/plan"));
  };
  EXPECT_TRUE(has(AttentionFragments{}, {{"step_tokens", 8}, {"threads", 64}}));
  EXPECT_FALSE(has(AttentionLanes{}, {{"step_tokens", 8}, {"threads", 64}}));
  EXPECT_TRUE(has(AttentionFragments{}, {{"dataflow", "fragments"}, {"step_tokens", 8}}));
  EXPECT_FALSE(has(AttentionFragments{}, {{"dataflow", "lanes"}}));
  for_each_dataflow([&](const Plan& plan) {
    EXPECT_TRUE(has(plan, Json::object()));
    EXPECT_TRUE(has(plan, to_json(plan)));
    for_each_dataflow([&](const Plan& other) {
      EXPECT_EQ(has(other, to_json(plan)), other.index() == plan.index()) << kernel_name(other);
    });
  });
}

TEST(PlanFields, MayNameADataflowOfTheOp) {
  const Problem gemv = read_config(gemv_json(), "c.json").problem;
  const auto found = [&](const Json& fields, const Problem& problem) {
    return named_dataflow(JsonCursor(fields, "c.json", "/plan"), problem);
  };
  EXPECT_FALSE(found({{"threads", 64}}, gemv).has_value());
  EXPECT_EQ(found({{"dataflow", "tables"}, {"threads", 64}}, gemv), Plan(LinearTables{}));
  EXPECT_EQ(found({{"dataflow", "tables"}}, read_config(attention_json(), "c.json").problem),
            Plan(AttentionTables{}));
  for_each_dataflow([&](const Plan& plan) {
    const Problem problem = read_config(config_json(plan), "c.json").problem;
    EXPECT_EQ(found({{"dataflow", dataflow_name(plan)}}, problem), plan);
  });
  expect_words(message_of([&] {
                 found({{"dataflow", "channels"}}, gemv);
               }),
               {"c.json: /plan/dataflow: 'channels' is none of lanes, fragments, tables, "
                "warpgroups, slices"});
  expect_words(message_of([&] {
                 found({{"dataflow", 3}}, gemv);
               }),
               {"c.json: /plan/dataflow: must be a string"});
}

TEST(PlanFields, OfAWholePlanAreRead) {
  const auto read = [](const Json& json, const Problem& problem) {
    return read_plan(JsonCursor(json, "p.json"), problem);
  };
  for_each_dataflow([&]<class P>(P plan) {
    plan.threads = 96;
    const Problem problem = read_config(config_json(plan), "c.json").problem;
    EXPECT_EQ(read(to_json(Plan(plan)), problem), Plan(plan));
    EXPECT_EQ(read({{"dataflow", dataflow_name(plan)}, {"threads", 96}}, problem), Plan(plan));
  });
  const Problem gemv = read_config(gemv_json(), "c.json").problem;
  expect_words(message_of([&] {
                 read({{"threads", 96}}, gemv);
               }),
               {"p.json", "'dataflow' is missing: how the kernel does its op"});
  expect_words(message_of([&] {
                 read({{"dataflow", "slices"}, {"splits", 2}}, gemv);
               }),
               {"p.json: /splits: unknown field", "dataflow slices has ", "entry_slices"});
}

}  // namespace
}  // namespace vqgen

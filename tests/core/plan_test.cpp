// The fields of a plan that a config may fix: each field of a dataflow, within the declared bounds,
// and no field that the dataflow lacks.
#include "core/plan/plan.h"

#include "core/plan/plan_name.h"
#include "tests/core/named_plan.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// A config of an op that the plan's dataflow serves.
Json config_json(const Plan& plan) {
  for (const Json& json : {attention_json(), gemv_json(), append_json(), dequantize_json(),
                           merge_json(), scalar_json(), weight_rows_json()}) {
    if (is_plan_of(plan, read_config(json, "c.json").problem)) return json;
  }
  throw std::runtime_error("no config for " + plan_name(plan));
}

TEST(PlanOverrides, NothingFixedLeavesThePlanAlone) {
  const Plan plan = AttentionSimt{.threads = 256, .splits = 3};
  EXPECT_EQ(with_overrides(plan, read_config(attention_json(), "c.json")), plan);
}

TEST(PlanOverrides, FixedFieldsReplaceAndOthersStay) {
  const Plan chosen = AttentionSimt{.threads = 256, .splits = 3, .key_codebook = all_shared(256)};
  const Config config =
      with_plan(attention_json(),
                {{"threads", 64}, {"tile_tokens", 1}, {"key_codebook", {{"registers", 2}}}});
  const AttentionSimt expected{.threads = 64,
                               .tile_tokens = 1,
                               .splits = 3,
                               .key_codebook = {.registers = 2, .shared = 256}};
  EXPECT_EQ(with_overrides(chosen, config), Plan(expected));

  const Config gemv =
      with_plan(gemv_json(), {{"chunk_columns", 64}, {"codebook", {{"shared", 128}}}});
  EXPECT_EQ(with_overrides(LinearSimt{}, gemv),
            Plan(LinearSimt{.chunk_columns = 64, .codebook = all_shared(128)}));
}

TEST(PlanOverrides, APlanReadsWhatItWrites) {
  const Plan plan = AttentionSimt{.threads = 96,
                                  .tile_tokens = 8,
                                  .splits = 7,
                                  .heads_per_block = 2,
                                  .lanes_per_token = 16,
                                  .tiles_in_flight = 1,
                                  .key_codebook = {.registers = 1, .replicated = 4, .copies = 8},
                                  .value_codebook = all_replicated(16, 2)};
  EXPECT_EQ(with_overrides(AttentionSimt{}, with_plan(attention_json(), to_json(plan))), plan);
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
  expect_words(refuse(AttentionSimt{}, attention_json(), {{"chunk_columns", 64}}),
               {"c.json: /plan/chunk_columns: unknown field", "dataflow simt has "});
  expect_words(refuse(LinearSimt{}, gemv_json(), {{"tiles_in_flight", 2}}),
               {"c.json: /plan/tiles_in_flight: unknown field", "dataflow simt has "});
  expect_words(refuse(LinearSimt{}, gemv_json(), {{"codebook", {{"near", 1}}}}),
               {"c.json: /plan/codebook: unknown field 'near'"});
  expect_words(refuse(LinearSimt{}, gemv_json(), 3), {"c.json: /plan", "must be an object"});
}

// Each field of each dataflow, on all dataflows that lack it: neither a config nor a name can set
// it.
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

// Values that a dataflow fixes or computes are not fields.
TEST(PlanFields, AreNoneThatADataflowFixes) {
  const std::vector<std::pair<Plan, std::string>> fixed = {
      {AttentionMma{}, "tile_tokens"},
      {AttentionMma{}, "lanes_per_token"},
      {AttentionLut{}, "key_codebook"},
      {AttentionLut{}, "lanes_per_token"},
      {AttentionChannels{}, "combine"},
      {AttentionSimt{}, "key_channel_splits"},
      {LinearLut{}, "chunk_columns"},
      {LinearLut{}, "splits"},
      {LinearWgmma{}, "fragment_rows"},
      {LinearWgmma{}, "fusion"},
      {LinearWgmma{}, "warps_along_columns"},
      {LinearInt8Mma{}, "fragment_rows"},
      {LinearInt8Wgmma{}, "outputs_per_warp"},
      {LinearInt8Mma{}, "fusion"},
      {LinearWgmmaLargeM{}, "fetch_only_warps"},
      {LinearWgmmaLargeM{}, "prefetch_steps"},
      {LinearSlicedCodebook{}, "codebook"},
      {LinearSlicedCodebook{}, "splits"},
      {LinearSlicedCodebook{}, "chunk_columns"},
      {AppendSimt{}, "combine"},
      {AppendMma{}, "warps_along_entries"},
      {AppendMma{}, "sub_vectors_per_warp"},
      {AppendMma{}, "norms"},
      {AppendGemm{}, "warps_along_entries"},
      {AppendGemm{}, "norms"}};
  for (const auto& [plan, field] : fixed) {
    EXPECT_FALSE(to_json(plan).contains(field)) << kernel_name(plan) << " " << field;
  }
}

TEST(PlanFields, TellDataflowsApart) {
  const auto has = [](const Plan& plan, const Json& fields) {
    return has_fields(plan, JsonCursor(fields, "c.json", "/plan"));
  };
  EXPECT_TRUE(has(AttentionMma{}, {{"step_tokens", 8}, {"threads", 64}}));
  EXPECT_FALSE(has(AttentionSimt{}, {{"step_tokens", 8}, {"threads", 64}}));
  EXPECT_TRUE(has(AttentionMma{}, {{"dataflow", "mma"}, {"step_tokens", 8}}));
  EXPECT_FALSE(has(AttentionMma{}, {{"dataflow", "simt"}}));
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
  EXPECT_EQ(found({{"dataflow", "lut"}, {"threads", 64}}, gemv), Plan(LinearLut{}));
  EXPECT_EQ(found({{"dataflow", "lut"}}, read_config(attention_json(), "c.json").problem),
            Plan(AttentionLut{}));
  for_each_dataflow([&](const Plan& plan) {
    const Problem problem = read_config(config_json(plan), "c.json").problem;
    EXPECT_EQ(found({{"dataflow", dataflow_name(plan)}}, problem), plan);
  });
  expect_words(message_of([&] {
                 found({{"dataflow", "channels"}}, gemv);
               }),
               {"c.json: /plan/dataflow: 'channels' is none of simt, mma, lut, "
                "wgmma, sliced_codebook"});
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
                 read({{"dataflow", "sliced_codebook"}, {"splits", 2}}, gemv);
               }),
               {"p.json: /splits: unknown field", "dataflow sliced_codebook has ", "entry_slices"});
}

}  // namespace
}  // namespace vqgen

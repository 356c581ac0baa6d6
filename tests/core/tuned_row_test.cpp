// Plans by name, and rows of tuned tables: what is written is read back, and inconsistent rows are
// refused.
#include "core/plan/tuned_row.h"

#include <functional>

#include "core/plan/plan_name.h"
#include "tests/core/named_plan.h"
#include "tests/core/support.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

TEST(PlanName, SaysWhatIsNotDefaultAndIsReadAgain) {
  const Plan plan = AttentionMma{.splits = 16, .key_codebook = all_replicated(256, 4)};
  EXPECT_EQ(plan_name(plan),
            "attention_mma/splits=16,key_codebook.replicated=256,key_codebook.copies=4");
  const Plan linear = LinearMma{.fusion = LinearFusion::shared, .codebook = all_shared(7)};
  EXPECT_EQ(plan_name(linear), "linear_mma/fusion=shared,codebook.shared=7");
  const Plan merging = LinearSimt{.splits = 3, .combine = Combine::last_block};
  EXPECT_EQ(plan_name(merging), "linear_simt/splits=3,combine=last_block");
  for (const Plan& each : {plan, linear, merging}) EXPECT_EQ(named(plan_name(each)), each);
  for_each_dataflow([](const Plan& usual) {
    EXPECT_EQ(plan_name(usual), std::string(kernel_name(usual)) + "/");
    EXPECT_EQ(named(plan_name(usual)), usual);
  });
}

TEST(Codes, AreNamedInOneWay) {
  for (const char* name : {"uniform", "zipf:1", "zipf:1.25", "zipf:10", "profile:0123456789ab"}) {
    EXPECT_TRUE(names_codes(name)) << name;
  }
  for (const char* text :
       {"", "Uniform", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:inf", "zipf:1e999",
        "zipf:11", "zipf:1.0", "zipf:1x", "../../x", "profile:", "profile:../../x",
        "profile:0123456789aB", "profile:0123456789abc"}) {
    EXPECT_FALSE(names_codes(text)) << text;
  }
  EXPECT_EQ(zipf_skew("zipf:1.50"), 1.5);
  EXPECT_EQ(zipf_skew("uniform"), std::nullopt);
}

TEST(PlanName, WhatIsNoNameIsRefused) {
  for (const char* name : {"",
                           "/",
                           "simt",
                           "gemv/",
                           "linear_simt",
                           "linear/threads=64",
                           "attention_decode/",
                           "linear_simt/x=1",
                           "linear_simt/threads",
                           "linear_simt/threads=",
                           "linear_simt/threads=31",
                           "linear_simt/threads=64,threads=64",
                           "linear_simt/splits=2,threads=64",
                           "linear_simt/threads=256",
                           "linear_simt/dataflow=mma",
                           "linear_simt/codebook=3",
                           "linear_simt/codebook.x=1",
                           "linear_simt/threads=64,",
                           "linear_simt/threads=064",
                           "linear_simt/threads= 64",
                           "linear_simt/=64",
                           "linear_simt/threads=99999999999999999999",
                           "linear_simt/threads.x=3",
                           "linear_simt/codebook=3,codebook.shared=1"}) {
    EXPECT_THROW(named(name), Error) << name;
  }
}

Json row_json() {
  const TunedRow row{.problem = read_config(gemv_json(), "c.json").problem,
                     .gpu = "h200",
                     .environment = {"NVIDIA H200", "580.1", "nvrtc 13.0", "0.1"},
                     .plan = LinearSimt{.threads = 64},
                     .time_us = 3,
                     .low_us = 2.5,
                     .high_us = 3,
                     .default_plan = LinearSimt{},
                     .default_us = 4,
                     .runner_up = LinearSimt{.threads = 96},
                     .runner_up_us = 3.5,
                     .noise = 0.01,
                     .rel_err = 2e-4,
                     .candidates = 17};
  return to_json(row);
}

TunedRow read(const Json& json) { return read_tuned_row(JsonCursor(json, "t.jsonl:2")); }

TEST(TunedRow, ReadsWhatItWrites) {
  const Json json = row_json();
  const TunedRow row = read(json);
  EXPECT_EQ(to_json(row), json);
  EXPECT_EQ(row.plan, Plan(LinearSimt{.threads = 64}));
  EXPECT_EQ(tuned_key(row), tuned_key(row.problem, "h200", "uniform"));
  EXPECT_NE(tuned_key(row), tuned_key(row.problem, "h200", "zipf:1"));
  EXPECT_NE(tuned_key(row), tuned_key(row.problem, "h100", "uniform"));
}

TEST(TunedRow, EachLieIsRefused) {
  const auto lie = [](const std::function<void(Json&)>& change) {
    Json json = row_json();
    change(json);
    return message_of([&] { read(json); });
  };
  const Json whole = row_json();
  for (const auto& [key, unused] : whole.items()) {
    EXPECT_NE(lie([&](Json& json) { json.erase(key); }), "") << key;
  }
  EXPECT_NE(lie([](Json& json) { json["more"] = 1; }), "");
  EXPECT_NE(lie([](Json& json) { json["gpu"] = ""; }), "");
  EXPECT_NE(lie([](Json& json) { json["time_us"] = 0; }), "");
  EXPECT_NE(lie([](Json& json) { json["time_us"] = 2; }), "");
  EXPECT_NE(lie([](Json& json) { json["high_us"] = -1; }), "");
  EXPECT_NE(lie([](Json& json) { json["default_us"] = 1e300; }), "");
  EXPECT_NE(lie([](Json& json) { json["plan"] = "attention_simt/"; }), "");
  EXPECT_NE(lie([](Json& json) { json["candidates"] = 0; }), "");
  EXPECT_NE(lie([](Json& json) { json["problem"]["plan"] = Json::object(); }), "");
  EXPECT_NE(lie([](Json& json) { json["problem"]["shape"]["m"] = 0; }), "");
  EXPECT_NE(lie([](Json& json) { json["policy"].erase("codes"); }), "");
}

}  // namespace
}  // namespace vqgen

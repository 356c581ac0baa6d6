// The JSON Schema of config.json: the published file is the generated one; it accepts the examples
// and refuses what the reader refuses.
#include <cstdlib>

#include "core/access/takes_access_counts.h"
#include "core/files/files.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "tests/core/schema_validator.h"
#include "tests/core/support.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

const char* const kPublished = VQGEN_SOURCE_DIR "/docs/config.schema.json";

// VQGEN_UPDATE_DOCS=1 rewrites the file.
TEST(Schema, ThePublishedFileIsTheGeneratedOne) {
  const std::string generated = config_schema().dump(2) + "\n";
  const char* const update = std::getenv("VQGEN_UPDATE_DOCS");
  if (update != nullptr && std::string(update) == "1") publish_text(kPublished, generated);
  EXPECT_TRUE(read_text(kPublished) == generated)
      << "the fields have changed: set VQGEN_UPDATE_DOCS=1 and run this test again";
}

TEST(Schema, AcceptsTheExamples) {
  const Json schema = config_schema();
  for (const auto& path : example_configs()) {
    EXPECT_EQ(schema_problem(schema, parse_json_file(path)), "") << path;
  }
}

std::vector<Json> configs_of_all_ops() {
  return {attention_json(), gemv_json(),       edited(gemv_json(), {{"/op", R"("gemm")"}}),
          append_json(),    dequantize_json(), merge_json(),
          scalar_json(),    weight_rows_json()};
}

TEST(Schema, AcceptsWhatVqgenWrites) {
  int accepted = 0;
  for (const Json& json : configs_of_all_ops()) {
    const Problem problem = read_config(json, "c.json").problem;
    Json canonical = to_json(problem);
    canonical["gpu"] = "t4";
    if (why_no_access_counts(problem).empty()) canonical["access_counts"] = "profile.json";
    for_each_dataflow([&](const Plan& plan) {
      canonical["plan"] = to_json(plan);
      const bool own = is_plan_of(plan, problem);
      EXPECT_EQ(schema_problem(config_schema(), canonical).empty(), own) << canonical.dump();
      accepted += own ? 1 : 0;
    });
  }
  EXPECT_EQ(accepted, 6 + 8 + 8 + 3 + 1 + 1 + 1 + 1);
}

// Each op has the plans of its dataflows, each with its declared fields, defaults and bounds.
TEST(Schema, PlansFollowFromTheirFields) {
  std::map<std::string, Json> plans;
  const Json whole = config_schema();
  for (const Json& op : whole.at("oneOf")) {
    const Json& properties = op.at("properties");
    plans[properties.at("op").at("const").get<std::string>()] = properties.at("plan").at("anyOf");
  }
  ASSERT_EQ(plans.size(), 9u);
  for (const Json& json : configs_of_all_ops()) {
    const Problem problem = read_config(json, "c.json").problem;
    const Json& schemas = plans.at(op_name(problem));
    std::size_t at = 0;
    for_each_dataflow([&]<class P>(const P& plan) {
      if (!is_plan_of(plan, problem)) return;
      SCOPED_TRACE(op_name(problem) + " " + plan.kName);
      ASSERT_LT(at, schemas.size());
      const Json& schema = schemas[at++];
      EXPECT_EQ(schema.at("title"), dataflow_name(plan));
      EXPECT_EQ(schema.at("required"), Json::array());
      Json expected = {{"dataflow", {{"const", dataflow_name(plan)}}}};
      for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
        Json each = {{"description", field.doc}, {"default", to_json_value(P{}.*field.member)}};
        if constexpr (std::is_same_v<Member, int>) {
          each["type"] = "integer";
          each["minimum"] = static_cast<std::int64_t>(field.rule.min);
          each["maximum"] = static_cast<std::int64_t>(field.rule.max);
        } else if constexpr (std::is_enum_v<Member>) {
          const auto names = names_within<Member>(field.rule);
          each["enum"] = std::vector<std::string>(names.begin(), names.end());
        } else {
          each["$ref"] = "#/$defs/placement";
        }
        expected[field.name] = each;
      });
      EXPECT_EQ(schema.at("properties"), expected);
    });
    EXPECT_EQ(at, schemas.size());
  }
}

TEST(Schema, AcceptsFormatsByNameFileAndPreset) {
  for (const char* keys :
       {R"("cq-4c8b")", R"("mine.json")", R"({"preset": "cq-4c8b"})",
        R"({"preset": "vecinfer-d4b8", "hadamard": false, "num_codebooks": 2})"}) {
    const Json json = edited(attention_json(), {{"/keys", keys}});
    EXPECT_EQ(schema_problem(config_schema(), json), "") << keys;
  }
}

struct Broken {
  const char* name;
  bool attention;
  std::vector<Edit> edits;
  std::vector<std::string> words;  // of the schema's answer
};

class SchemaRefusal : public testing::TestWithParam<Broken> {};

TEST_P(SchemaRefusal, AndTheReaderAgrees) {
  const Broken& broken = GetParam();
  const Json sound = broken.attention ? attention_json() : gemv_json();
  ASSERT_EQ(schema_problem(config_schema(), sound), "");
  const Json json = edited(sound, broken.edits);
  const std::string problem = schema_problem(config_schema(), json);
  EXPECT_NE(problem, "");
  expect_words(problem, broken.words);
  message_of(
      [&] { propose(read_config(json, "c.json"), find_gpu("h200"), {.chooser = Chooser::rules}); });
}

INSTANTIATE_TEST_SUITE_P(
    All, SchemaRefusal,
    testing::Values(
        Broken{"no_op", true, {{"/op", ""}}, {"required op"}},
        Broken{"other_op", true, {{"/op", R"("gemm")"}}, {"/op: const"}},
        Broken{"no_shape", false, {{"/shape", ""}}, {"required shape"}},
        Broken{"no_keys", true, {{"/keys", ""}}, {"required keys"}},
        Broken{"no_weights", false, {{"/weights", ""}}, {"required weights"}},
        Broken{"unknown", true, {{"/kyes", "1"}}, {"additional kyes"}},
        Broken{"other_ops_field", true, {{"/weights", R"("aqlm-2x8")"}}, {"additional weights"}},
        Broken{"other_ops_shape", false, {{"/shape/batch", "1"}}, {"/shape: additional batch"}},
        Broken{"no_rows", false, {{"/shape/m", ""}}, {"/shape: required m"}},
        Broken{"rows_low", false, {{"/shape/m", "0"}}, {"/shape/m: minimum"}},
        Broken{"rows_high", false, {{"/shape/m", "257"}}, {"/shape/m: maximum"}},
        Broken{"rows_text", false, {{"/shape/m", R"("1")"}}, {"/shape/m: type"}},
        Broken{"rows_fraction", false, {{"/shape/m", "1.5"}}, {"/shape/m: type"}},
        Broken{"rows_truth", false, {{"/shape/m", "true"}}, {"/shape/m: type"}},
        Broken{"shared_cache", true, {{"/shape/shared_cache", "true"}}, {"/shape: additional"}},
        Broken{"page_tokens", true, {{"/shape/page_tokens", "257"}}, {"/page_tokens: maximum"}},
        Broken{"dtype", true, {{"/dtype", R"("f32")"}}, {"/dtype: enum"}},
        Broken{"gpu", true, {{"/gpu", "1"}}, {"/gpu: type"}},
        Broken{"access_counts", false, {{"/access_counts", "{}"}}, {"/access_counts: type"}},
        Broken{"format_number", true, {{"/keys", "8"}}, {"/keys: oneOf: 0 are valid"}},
        Broken{"format_field", true, {{"/keys/bits", "8"}}, {"/keys: additional bits"}},
        Broken{"format_required", true, {{"/keys/index_bits", ""}}, {"required index_bits"}},
        Broken{"preset_number", true, {{"/keys", R"({"preset": 4})"}}, {"/keys/preset: type"}},
        Broken{"preset_field",
               true,
               {{"/keys", R"({"preset": "cq-4c8b", "bits": 8})"}},
               {"/keys: additional bits"}},
        Broken{"index_bits_0", true, {{"/keys/index_bits", "0"}}, {"/keys/index_bits: minimum"}},
        Broken{"index_bits_19", false, {{"/weights/index_bits", "19"}}, {"index_bits: maximum"}},
        Broken{"layout", false, {{"/weights/layout", "4"}}, {"/weights/layout: type"}},
        Broken{"layout_rows", true, {{"/keys/layout", R"({"rows": 64})"}}, {"rows: maximum"}},
        Broken{"layout_field", true, {{"/keys/layout", R"({"row": 4})"}}, {"additional row"}},
        Broken{"scope", false, {{"/weights/scope", R"("row")"}}, {"/weights/scope: enum"}},
        Broken{"plan_type", true, {{"/plan", "1"}}, {"/plan: type"}},
        Broken{"plan_field", true, {{"/plan", R"({"warps": 4})"}}, {"/plan: additional warps"}},
        Broken{"plan_bound",
               true,
               {{"/plan", R"({"tiles_in_flight": 3})"}},
               {"/plan/tiles_in_flight: maximum"}},
        Broken{
            "plan_level", false, {{"/plan", R"({"codebook": {"near": 1}})"}}, {"/plan/codebook"}},
        Broken{"plan_other_op",
               false,
               {{"/plan", R"({"tiles_in_flight": 2})"}},
               {"/plan: additional tiles_in_flight"}},
        Broken{"plan_dataflow", true, {{"/plan", R"({"dataflow": "warps"})"}}, {"dataflow: const"}},
        Broken{"plan_other_dataflow",
               true,
               {{"/plan", R"({"dataflow": "mma", "tile_tokens": 8})"}},
               {"/plan: additional tile_tokens", "/plan/dataflow: const"}},
        Broken{"plan_of_two_dataflows",
               true,
               {{"/plan", R"({"step_tokens": 8, "table_bits": 16})"}},
               {"/plan: additional step_tokens", "/plan: additional table_bits"}}),
    [](const auto& test) { return test.param.name; });

bool taken(const Json& json) {
  try {
    const Config config = read_config(json, "c.json");
    if (config.plan.empty()) return check(config.problem).ok;
    const Plan plan = propose(config, find_gpu("h200"), {.chooser = Chooser::rules});
    return check(plan, config.problem, find_gpu("h200")).ok;
  } catch (const Error&) {
    return false;
  }
}

// Configs of an op, among which each value of its fields is taken by one.
std::vector<Json> configs_of(const std::string& op) {
  std::vector<Json> configs;
  for (Json json : configs_of_all_ops()) {
    if (op == "int8_dequantize" && json["op"] == "int8_quantize") json["op"] = op;
    if (json["op"] != op) continue;
    std::vector<std::string> presets{"vecinfer-d4b8i8", "cq-4c8b"};
    std::vector<Json> shapes{json["shape"]};
    if (json.contains("weights")) {
      presets = {"aqlm-2x8", "aqlm-2x8i8", "aqlm-1x16"};
      if (json["shape"].contains("m")) {
        shapes.clear();
        for (const int m : {2, 8, 64}) {
          shapes.push_back({{"m", m}, {"out_features", 4096}, {"in_features", 4096}});
        }
      }
    } else if (json.contains("keys")) {
      shapes[0].update({{"head_dim", 128}, {"tokens", 32768}, {"recent_tokens", 64}});
    } else {
      presets = {""};
    }
    for (const Json& shape : shapes) {
      for (const std::string& preset : presets) {
        json["shape"] = shape;
        for (const char* operand : {"keys", "values", "weights"}) {
          if (json.contains(operand)) json[operand] = preset;
        }
        configs.push_back(json);
      }
    }
  }
  return configs;
}

// What the schema offers some config of the op has, and what a config has the schema takes.
TEST(Schema, OffersValuesThatTheOpHasAndNoOthers) {
  const Json whole = config_schema();
  int offered = 0, refused = 0;
  std::uint64_t number = 0;
  const auto judge = [&](const std::string& what, const std::vector<Json>& configs) {
    if (!test::in_third(number++)) return;
    bool offers = false, has = false;
    for (const Json& json : configs) {
      const std::string problem = schema_problem(whole, json);
      const bool takes = taken(json);
      EXPECT_TRUE(!takes || problem.empty()) << problem << ": " << json.dump();
      offers = offers || problem.empty();
      has = has || takes;
    }
    EXPECT_TRUE(!offers || has) << what << " is offered, and no config has it";
    ++(offers ? offered : refused);
  };
  for (const Json& schema : whole.at("oneOf")) {
    const Json& properties = schema.at("properties");
    const std::string op = properties.at("op").at("const").get<std::string>();
    const std::vector<Json> configs = configs_of(op);
    const auto with = [&](const std::string& pointer, const Json& value) {
      std::vector<Json> changed = configs;
      for (Json& each : changed) each[Json::json_pointer(pointer)] = value;
      return changed;
    };
    for (const auto& [name, field] : properties.at("shape").at("properties").items()) {
      for (const char* value : {"given", "computed"}) {
        if (field.contains("enum")) judge(op + " " + name + value, with("/shape/" + name, value));
      }
    }
    for (const Json& plan : properties.at("plan").at("anyOf")) {
      for (const auto& [name, field] : plan.at("properties").items()) {
        if (!field.contains("enum")) continue;
        for (const Json& value : field.at("enum")) {
          judge(op + " " + plan.at("title").dump() + " " + name + " " + value.dump(),
                with("/plan", {{"dataflow", plan.at("title")}, {name, value}}));
        }
      }
    }
    for (const char* operand : {"keys", "values", "weights"}) {
      if (!properties.contains(operand)) continue;
      for (const auto& [name, field] : whole.at("$defs").at("format").at("properties").items()) {
        Json values = field.value("type", "") == "boolean" ? Json{true, false} : Json::array();
        if (field.contains("enum") && field["enum"][0].is_string()) values = field["enum"];
        for (const Json& value : values) {
          std::vector<Json> changed;
          for (const std::string& preset : format_names()) {
            changed.push_back(configs.front());
            changed.back()[operand] = {{"preset", preset}, {name, value}};
          }
          judge(op + " " + operand + " " + name + " " + value.dump(), changed);
        }
      }
    }
  }
  const int parts = test::sweep_third() == 0 ? 1 : 3;
  EXPECT_GT(offered * parts, 150);
  EXPECT_GT(refused * parts, 20);
}

TEST(Schema, RefusesOtherThanObjects) {
  for (const char* text : {"[]", "1", "null", R"("gemv")", "{}"}) {
    EXPECT_NE(schema_problem(config_schema(), parse_json(text, "test")), "") << text;
  }
}

}  // namespace
}  // namespace vqgen

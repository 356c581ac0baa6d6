// Reading config.json: field names, presets and objects, plan overrides.
#include "core/problem/config.h"

#include "core/files/files.h"
#include "core/profiles.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

TEST(Config, ReadsAttention) {
  const Config config = read_config(parse_json(R"({
    "op": "attention_decode", "dtype": "bf16",
    "shape": {"batch": 3, "query_heads": 8, "kv_heads": 4, "head_dim": 64, "tokens": 5,
              "recent_tokens": 16, "sinks": 4},
    "keys": {"vector_size": 2, "index_bits": 9, "num_codebooks": 2, "scope": "channel_group",
             "group_channels": 8, "smooth": true, "hadamard": true, "stage_scales": true},
    "values": {"vector_size": 8, "index_bits": 12, "scope": "head"},
    "gpu": "t4", "plan": {"threads": 64}})",
                                               "text"),
                                    "c.json");
  const auto& op = std::get<AttentionDecode>(config.problem);
  EXPECT_EQ(op.dtype, DType::bf16);
  EXPECT_EQ(op.shape, (AttentionShape{3, 8, 4, 64, 5, 16, 4}));
  EXPECT_EQ(op.group(), 2);
  EXPECT_EQ(op.raw_slots(), 20);
  VqFormat keys{.vector_size = 2, .index_bits = 9, .num_codebooks = 2};
  keys.scope = Scope::channel_group;
  keys.group_channels = 8;
  keys.smooth = keys.hadamard = keys.stage_scales = true;
  EXPECT_EQ(op.keys, keys);
  EXPECT_EQ(op.values, (VqFormat{.vector_size = 8, .index_bits = 12, .scope = Scope::head}));
  EXPECT_EQ(config.gpu, "t4");
  EXPECT_EQ(config.plan, Json({{"threads", 64}}));
  EXPECT_EQ(config.source, "c.json");
  EXPECT_EQ(op_name(config.problem), "attention_decode");
}

TEST(Config, AccessCountsIsWrittenFromTheConfigsFolder) {
  const auto access_counts = [](const char* written, const char* source) {
    return read_config(edited(gemv_json(), {{"/access_counts", written}}), source).access_counts;
  };
  EXPECT_EQ(access_counts(R"("p.json")", "some/folder/c.json"), "some/folder/p.json");
  EXPECT_EQ(access_counts(R"("../p.json")", "folder/c.json"), "folder/../p.json");
  EXPECT_EQ(access_counts(R"("p.json")", "c.json"), "p.json");
  EXPECT_EQ(access_counts(R"("/p.json")", "some/c.json"), "/p.json");
}

// A plain layout is not written, so keys of caches and tables do not change.
TEST(Config, PlainLayoutsAreNotWritten) {
  const auto weights = [](const char* layout) {
    const Json json = edited(gemv_json(), {{"/weights/layout", layout}});
    return to_json(read_config(json, "c.json").problem).at("weights");
  };
  EXPECT_FALSE(weights("{}").contains("layout"));
  EXPECT_FALSE(weights(R"({"rows": 1, "words": 1})").contains("layout"));
  EXPECT_EQ(weights("{}"), to_json(read_config(gemv_json(), "c.json").problem).at("weights"));
  EXPECT_EQ(weights(R"({"rows": 4})").at("layout"), Json({{"rows", 4}, {"words", 1}}));
  EXPECT_EQ(weights(R"({"words": 2})").at("layout"), Json({{"rows", 1}, {"words", 2}}));
  const Json grouped = edited(gemv_json(), {{"/weights/layout", R"({"rows": 2, "words": 2})"}});
  const auto op = std::get<Gemv>(read_config(grouped, "c.json").problem);
  EXPECT_EQ(op.weights.layout, (CodeLayout{2, 2}));
  EXPECT_EQ(short_name(op.weights), "d8b8_l2x2");
  EXPECT_EQ(read_config(to_json(Problem(op)), "c.json").problem, Problem(op));
  EXPECT_EQ(short_name(without_layout(op.weights)), "d8b8");
}

TEST(Config, ReadsGemvWithDefaults) {
  const Config config = read_config(gemv_json(), "c.json");
  const auto& op = std::get<Gemv>(config.problem);
  EXPECT_EQ(op.dtype, DType::f16);
  EXPECT_EQ(op.shape, (LinearShape{2, 512, 1024}));
  EXPECT_EQ(op.weights, (VqFormat{.vector_size = 8, .index_bits = 8}));
  EXPECT_FALSE(config.gpu);
  EXPECT_FALSE(config.access_counts);
  EXPECT_TRUE(config.plan.empty());
  EXPECT_EQ(op_name(config.problem), "gemv");
}

TEST(Config, AttentionDefaultsAreOff) {
  const auto op = std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
  EXPECT_EQ(op.shape, (AttentionShape{2, 8, 2, 128, 1000, 0, 0}));
}

// A problem has one text, by which plans and kernels are found.
TEST(Config, AValueHeadDimOfKeysIsNone) {
  const Problem plain = read_config(attention_json(), "c.json").problem;
  const Json same = edited(attention_json(), {{"/shape/value_head_dim", "128"}});
  EXPECT_EQ(read_config(same, "c.json").problem, plain);
  EXPECT_FALSE(to_json(plain)["shape"].contains("value_head_dim"));
  const Json other = edited(attention_json(), {{"/shape/value_head_dim", "64"}});
  const auto op = std::get<AttentionDecode>(read_config(other, "c.json").problem);
  EXPECT_EQ(op.shape.value_dim(), 64);
  EXPECT_EQ(to_json(Problem(op))["shape"]["value_head_dim"], 64);
  EXPECT_EQ(read_config(to_json(Problem(op)), "c.json").problem, Problem(op));
}

TEST(Config, PresetsStandForTheirFields) {
  const Json json = edited(attention_json(), {{"/keys", R"("vecinfer-d4b8")"}});
  const auto op = std::get<AttentionDecode>(read_config(json, "c.json").problem);
  EXPECT_EQ(op.keys, find_format("vecinfer-d4b8", "test"));
  EXPECT_TRUE(op.keys.smooth);
  EXPECT_TRUE(op.keys.hadamard);
}

TEST(Config, ValuesDropThePresetsTransforms) {
  const Json json = edited(attention_json(), {{"/values", R"("vecinfer-d4b8")"}});
  const auto op = std::get<AttentionDecode>(read_config(json, "c.json").problem);
  EXPECT_EQ(op.values, for_values(find_format("vecinfer-d4b8", "test")));
  EXPECT_FALSE(op.values.smooth);
  EXPECT_FALSE(op.values.hadamard);
  EXPECT_EQ(op.values.scope, Scope::head);
}

AttentionDecode attention_with(const std::vector<Edit>& edits, const std::string& source = "c") {
  return std::get<AttentionDecode>(read_config(edited(attention_json(), edits), source).problem);
}

TEST(Config, AnObjectExtendsThePresetThatItNames) {
  VqFormat expected = find_format("vecinfer-d4b8", "test");
  expected.hadamard = false;
  expected.num_codebooks = 2;
  const auto op = attention_with(
      {{"/keys", R"({"preset": "vecinfer-d4b8", "hadamard": false, "num_codebooks": 2})"},
       {"/values", R"({"preset": "vecinfer-d4b8", "index_bits": 6})"},
       {"/shape/head_dim", "96"}});
  EXPECT_EQ(op.keys, expected);
  expected = for_values(find_format("vecinfer-d4b8", "test"));
  expected.index_bits = 6;
  EXPECT_EQ(op.values, expected) << "which drop the preset's transforms";
  // The record has the format, not how it was written.
  const Json canonical = to_json(Problem(op));
  EXPECT_EQ(canonical["keys"], to_json(op.keys));
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(op));
}

TEST(Config, AFormatFileIsTakenFromTheConfigsFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "formats");
  const std::string file = (folder.path() / "formats/mine.json").string();
  publish_text(file, R"({"preset": "vecinfer-d4b8", "scope": "tensor"})");
  VqFormat expected = find_format("vecinfer-d4b8", "test");
  expected.scope = Scope::tensor;
  const std::string source = (folder.path() / "c.json").string();
  const std::string quoted = Json(file).dump();
  EXPECT_EQ(attention_with({{"/keys", R"("formats/mine.json")"}}, source).keys, expected);
  EXPECT_EQ(attention_with({{"/keys", quoted}}, "elsewhere/c.json").keys, expected);
  EXPECT_EQ(attention_with({{"/values", quoted}}).values, for_values(expected));
  expected.num_codebooks = 2;
  EXPECT_EQ(
      attention_with({{"/keys", R"({"preset": "formats/mine.json", "num_codebooks": 2})"}}, source)
          .keys,
      expected);
  publish_text(file, R"({"preset": "vecinfer-d4b8", "bits": 2})");
  expect_words(message_of([&] {
                 attention_with({{"/keys", quoted}});
               }),
               {file + ": /: unknown field 'bits'"});
  expect_words(message_of([&] {
                 attention_with({{"/keys", R"("none.json")"}}, source);
               }),
               {(folder.path() / "none.json").string() + ": cannot read"});
}

TEST(Config, CanonicalJsonGivesTheProblemBack) {
  for (const Json& json : {attention_json(), gemv_json()}) {
    const Problem problem = read_config(json, "c.json").problem;
    const Json canonical = to_json(problem);
    EXPECT_EQ(read_config(canonical, "again.json").problem, problem);
    EXPECT_EQ(to_json(read_config(canonical, "again.json").problem).dump(), canonical.dump());
  }
  for (const auto& path : example_configs()) {
    const Problem problem = read_config(path).problem;
    EXPECT_EQ(read_config(to_json(problem), "again.json").problem, problem) << path;
  }
}

TEST(Config, ReadsFilesAndNamesThem) {
  const TempFolder folder;
  const std::filesystem::path path = folder.path() / "mine.json";
  expect_words(message_of([&] { read_config(path); }), {path.string(), "cannot read"});
  publish_text(path, R"({"op": "gemv", "op": "gemv"})");
  expect_words(message_of([&] { read_config(path); }), {path.string(), "'op' is there twice"});
  publish_text(path, gemv_json().dump());
  EXPECT_EQ(read_config(path).source, path.string());
}

struct Refusal {
  const char* name;
  bool attention;
  std::vector<Edit> edits;
  std::vector<std::string> words;
};

class ConfigRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ConfigRefusal, NamesFilePlaceAndRemedy) {
  const Refusal& refusal = GetParam();
  const Json sound = refusal.attention ? attention_json() : gemv_json();
  ASSERT_NO_THROW(read_config(sound, "c.json"));
  const std::string message =
      message_of([&] { read_config(edited(sound, refusal.edits), "c.json"); });
  expect_words(message, {"c.json: /"});
  expect_words(message, refusal.words);
}

const char* const kSmooth = "smooth and hadamard transform keys only";

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefusal,
    testing::Values(
        Refusal{"no_op",
                true,
                {{"/op", ""}},
                {"'op' is missing: attention_decode, gemv, gemm, kv_append, kv_dequantize, "
                 "attention_merge, int8_quantize, int8_dequantize or weight_dequantize"}},
        Refusal{"bad_op", true, {{"/op", R"("matmul")"}}, {"/op: 'matmul' is none of", "gemv"}},
        Refusal{"near_op",
                true,
                {{"/op", R"("atention_decode")"}},
                {"did you mean 'attention_decode'?"}},
        Refusal{"op_number", true, {{"/op", "1"}}, {"/op: must be a string, not the integer 1"}},
        Refusal{"no_shape", true, {{"/shape", ""}}, {"'shape' is missing: the sizes"}},
        Refusal{"no_keys", true, {{"/keys", ""}}, {"'keys' is missing", "preset, a file or"}},
        Refusal{"no_values", true, {{"/values", ""}}, {"'values' is missing", "preset"}},
        Refusal{"no_weights", false, {{"/weights", ""}}, {"'weights' is missing", "preset"}},
        Refusal{"keys_in_gemv", false, {{"/keys", R"("cq-2c8b")"}}, {"unknown field 'keys'"}},
        Refusal{"weights_in_attention", true, {{"/weights", R"("aqlm-2x8")"}}, {"'weights'"}},
        Refusal{"rows_in_attention", true, {{"/shape/m", "1"}}, {"/shape: ", "'m'"}},
        Refusal{"one_cache_for_all",
                true,
                {{"/shape/shared_cache", "true"}},
                {"/shape: unknown field 'shared_cache'", "and 12 more"}},
        Refusal{"window_of_none",
                true,
                {{"/shape/sliding_window", "0"}},
                {"/shape/sliding_window: must be a whole number from 1", "not the integer 0"}},
        Refusal{"window_and_chunk",
                true,
                {{"/shape/sliding_window", "64"}, {"/shape/attention_chunk", "64"}},
                {"/shape/attention_chunk: goes without sliding_window"}},
        Refusal{"chain_of_many",
                true,
                {{"/shape/query_tokens", "17"}},
                {"/shape/query_tokens: 17 are more than the 16", "set tree_mask to true"}},
        Refusal{"tree_of_one",
                true,
                {{"/shape/tree_mask", "true"}},
                {"/shape/tree_mask: is of several query tokens, and query_tokens is 1"}},
        Refusal{"tree_without_its_batch",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/tree_mask", "true"},
                 {"/shape/batch_invariant", "true"}},
                {"/shape/batch_invariant: goes without tree_mask"}},
        Refusal{"tree_in_chunks",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/tree_mask", "true"},
                 {"/shape/attention_chunk", "64"}},
                {"/shape/attention_chunk: goes without tree_mask"}},
        Refusal{"tree_beyond_its_window",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/tree_mask", "true"},
                 {"/shape/sliding_window", "39"}},
                {"/shape/sliding_window: 39 would hide drafts", "lower query_tokens 40"}},
        Refusal{"prefix_of_one",
                true,
                {{"/shape/shared_prefix", "true"}},
                {"/shape/shared_prefix: is of several query tokens, and query_tokens is 1"}},
        Refusal{"prefix_in_a_window",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/sliding_window", "39"}},
                {"/shape/sliding_window: goes without shared_prefix"}},
        Refusal{"prefix_in_chunks",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/attention_chunk", "64"}},
                {"/shape/attention_chunk: goes without shared_prefix"}},
        Refusal{"prefix_of_a_tree",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/tree_mask", "true"}},
                {"/shape/tree_mask: goes without shared_prefix"}},
        Refusal{"prefix_with_sink_logits",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/sink_logits", "true"}},
                {"/shape/sink_logits: go without shared_prefix", "count twice"}},
        Refusal{"prefix_whatever_the_batch",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/batch_invariant", "true"}},
                {"/shape/batch_invariant: goes without shared_prefix"}},
        Refusal{"prefix_in_full_precision",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/recent_tokens", "16"},
                 {"/shape/flush_block", "8"}},
                {"/shape/recent_tokens: 16 goes without shared_prefix",
                 "set it to 0, and flush_block to 1"}},
        Refusal{"prefix_with_sinks",
                true,
                {{"/shape/query_tokens", "40"},
                 {"/shape/shared_prefix", "true"},
                 {"/shape/sinks", "4"},
                 {"/shape/recent_tokens", "0"}},
                {"/shape/sinks: 4 goes without shared_prefix"}},
        Refusal{"cap_of_none",
                true,
                {{"/shape/logit_softcap", "0"}},
                {"/shape/logit_softcap: must be a number from 0.01 to 1000"}},
        Refusal{"cap_of_centered_keys",
                true,
                {{"/shape/logit_softcap", "30"}, {"/keys", R"("klt-2bit-keys")"}},
                {"/shape/logit_softcap: bounds whole scores", "take keys without center"}},
        Refusal{"misspelt",
                true,
                {{"/dtpye", R"("f16")"}},
                {"unknown field 'dtpye'", "did you mean 'dtype'?"}},
        Refusal{"dtype", true, {{"/dtype", R"("fp32")"}}, {"/dtype: 'fp32' is none of f16, bf16"}},
        // Whatever else a newer vqgen writes, the version comes first.
        Refusal{"newer",
                true,
                {{"/version", "2"}, {"/future", "1"}, {"/op", R"("conv")"}},
                {"/version: is format version 2, and this vqgen knows up to 1; upgrade vqgen"}},
        Refusal{"version_0", true, {{"/version", "0"}}, {"/version: must be a whole number"}},
        Refusal{"version_text", true, {{"/version", R"("1")"}}, {"/version: must be a whole"}},
        Refusal{"gpu", true, {{"/gpu", "90"}}, {"/gpu: must be a string"}},
        Refusal{"no_batch", true, {{"/shape/batch", ""}}, {"/shape: ", "'batch' is missing"}},
        Refusal{"rows_nine", false, {{"/shape/m", "9"}}, {"/shape/m: ", "1 to 8"}},
        Refusal{"index_bits_0", true, {{"/keys/index_bits", "0"}}, {"/keys/index_bits: ", "2 to"}},
        Refusal{"index_bits_19", true, {{"/keys/index_bits", "19"}}, {"/keys/index_bits: ", "18"}},
        Refusal{
            "preset", true, {{"/keys", R"("cq-9")"}}, {"/keys: format 'cq-9' is unknown", "cq"}},
        Refusal{"near_preset",
                true,
                {{"/keys", R"("vecinfer-d4b9")"}},
                {"/keys: format", "did you mean 'vecinfer-d4b8'?"}},
        Refusal{"extended_preset",
                true,
                {{"/keys", R"({"preset": "cq-4c8"})"}},
                {"/keys/preset: format 'cq-4c8' is unknown", "did you mean 'cq-4c8b'?"}},
        Refusal{"extended_field",
                true,
                {{"/keys", R"({"preset": "cq-4c8b", "hadamrd": false})"}},
                {"/keys: unknown field 'hadamrd'", "preset", "hadamard"}},
        Refusal{"extended_value",
                true,
                {{"/keys", R"({"preset": "cq-4c8b", "index_bits": 19})"}},
                {"/keys/index_bits: ", "2 to 18"}},
        Refusal{"extended_hadamard",
                true,
                {{"/values", R"({"preset": "cq-4c8b", "hadamard": true})"}},
                {"/values: ", kSmooth}},
        Refusal{"preset_alone",
                true,
                {{"/keys", R"({"preset": 4})"}},
                {"/keys/preset: must be a string"}},
        Refusal{"format_type", true, {{"/keys", "[8]"}}, {"/keys: must be an object"}},
        Refusal{"scope", true, {{"/keys/scope", R"("row")"}}, {"/keys/scope: ", "none of tensor"}},
        Refusal{"values_smooth", true, {{"/values/smooth", "true"}}, {"/values: ", kSmooth}},
        Refusal{"values_hadamard", true, {{"/values/hadamard", "true"}}, {"/values: ", kSmooth}}),
    [](const auto& test) { return test.param.name; });

TEST(Config, AVersionMayBeGiven) {
  const Problem plain = read_config(gemv_json(), "c.json").problem;
  EXPECT_EQ(read_config(edited(gemv_json(), {{"/version", "1"}}), "c.json").problem, plain);
}

TEST(Config, OtherThanAnObjectIsRefused) {
  expect_words(message_of([] { read_config(Json::array(), "c.json"); }),
               {"c.json: /: must be an object"});
}

}  // namespace
}  // namespace vqgen

// validate(): every rule has a case that breaks it and a near miss that passes.
#include "core/problem/problem.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

struct Rule {
  const char* name;
  bool attention;
  std::vector<Edit> broken;
  std::vector<std::string> words;
  std::vector<Edit> near_miss;
};

class Validate : public testing::TestWithParam<Rule> {};

TEST_P(Validate, RefusesTheBrokenAndPassesTheNearMiss) {
  const Rule& rule = GetParam();
  const Json sound = rule.attention ? attention_json() : gemv_json();
  const std::string message =
      message_of([&] { read_config(edited(sound, rule.broken), "c.json"); });
  expect_words(message, {"c.json: /"});
  expect_words(message, rule.words);
  EXPECT_NO_THROW(read_config(edited(sound, rule.near_miss), "c.json"));
}

const std::string kGroup = R"("channel_group")";
const std::string kTile = R"("tile")";

INSTANTIATE_TEST_SUITE_P(
    Attention, Validate,
    testing::Values(
        Rule{"key_runs_are_one_access",
             true,
             {{"/keys/layout", R"({"rows": 4, "words": 2})"}},
             {"/keys/layout: no kernel reads groups of 4 rows in runs of 2 words"},
             {{"/keys/layout", R"({"rows": 4})"}}},
        Rule{"value_groups_are_powers_of_two",
             true,
             {{"/values/layout", R"({"rows": 3})"}},
             {"/values/layout: no kernel reads groups of 3 rows", "use 1, 2 or 4"},
             {{"/values/layout", R"({"rows": 2, "words": 2})"}}},
        Rule{"key_vectors_fill_a_head",
             true,
             {{"/keys/vector_size", "3"}},
             {"/keys/vector_size: 3 does not divide head_dim 128"},
             {{"/keys/vector_size", "16"}}},
        Rule{"value_vectors_fill_a_head",
             true,
             {{"/values/vector_size", "256"}},
             {"/values/vector_size: 256 does not divide head_dim 128"},
             {{"/values/vector_size", "128"}}},
        Rule{"group_channels_need_their_scope",
             true,
             {{"/keys/group_channels", "8"}},
             {"/keys/group_channels: ", "scope channel_group only; remove it"},
             {{"/keys/group_channels", "8"}, {"/keys/scope", kGroup}}},
        Rule{"groups_hold_whole_vectors",
             true,
             {{"/keys/group_channels", "2"}, {"/keys/scope", kGroup}},
             {"/keys/group_channels: 2 is not a multiple of vector_size 4"},
             {{"/keys/group_channels", "4"}, {"/keys/scope", kGroup}}},
        Rule{"groups_fill_a_head",
             true,
             {{"/values/group_channels", "12"}, {"/values/scope", kGroup}},
             {"/values/group_channels: 12 does not divide head_dim 128"},
             {{"/values/group_channels", "16"}, {"/values/scope", kGroup}}},
        Rule{"the_lattice_has_vectors_of_8",
             true,
             {{"/values/decoder", R"("e8p")"}, {"/values/index_bits", "16"}},
             {"/values/decoder: e8p makes 8 elements of 16 bits, not 4 of 16; set vector_size"},
             {{"/values/decoder", R"("e8p")"},
              {"/values/index_bits", "16"},
              {"/values/vector_size", "8"}}},
        Rule{"no_tiles_in_a_cache",
             true,
             {{"/keys/scope", kTile}, {"/keys/tile_rows", "4"}, {"/keys/tile_columns", "4"}},
             {"/keys/scope: ", "use tensor, head or channel_group"},
             {{"/keys/scope", R"("head")"}}},
        Rule{"no_output_scales_in_a_cache",
             true,
             {{"/values/output_scales", "true"}},
             {"/values/output_scales: is for weights only; remove it, or take a format of caches"},
             {{"/values/stage_scales", "true"}}},
        Rule{"hadamard_needs_a_power_of_two",
             true,
             {{"/keys/hadamard", "true"}, {"/shape/head_dim", "96"}},
             {"/keys: hadamard takes", "not 96; set it to false"},
             {{"/keys/hadamard", "true"}, {"/shape/head_dim", "64"}}},
        Rule{"smooth_takes_any_head",
             true,
             {{"/keys/hadamard", "true"}, {"/shape/head_dim", "80"}},
             {"/keys: hadamard takes", "not 80"},
             {{"/keys/smooth", "true"}, {"/shape/head_dim", "80"}}},
        Rule{"query_heads_share_kv_heads",
             true,
             {{"/shape/query_heads", "9"}},
             {"/shape/query_heads: 9 is not a multiple of kv_heads 2"},
             {{"/shape/query_heads", "10"}}},
        Rule{"fewer_query_heads_than_kv_heads",
             true,
             {{"/shape/query_heads", "1"}},
             {"/shape/query_heads: 1 is not a multiple of kv_heads 2"},
             {{"/shape/query_heads", "2"}}},
        Rule{"cache_beyond_any_device",
             true,
             {{"/shape/kv_heads", "1"},
              {"/shape/head_dim", "1000"},
              {"/shape/tokens", "1000000000"},
              {"/shape/batch", "11"}},
             {"/shape: a cache of 1.1e+13 elements", "at most 1e+13"},
             {{"/shape/kv_heads", "1"},
              {"/shape/head_dim", "1000"},
              {"/shape/tokens", "1000000000"},
              {"/shape/batch", "10"}}},
        Rule{"pages_of_some_tokens",
             true,
             {{"/shape/page_tokens", "48"}},
             {"/shape/page_tokens: 48 is none of 16, 32, 64, 128 and 256"},
             {{"/shape/page_tokens", "256"}}},
        Rule{"pages_of_few_tokens",
             true,
             {{"/shape/page_tokens", "8"}},
             {"/shape/page_tokens: 8 is none of"},
             {{"/shape/page_tokens", "0"}}},
        Rule{"every_size_at_its_largest",
             true,
             {{"/shape/kv_heads", "65535"},
              {"/shape/query_heads", "65535"},
              {"/shape/head_dim", "1024"},
              {"/shape/tokens", "2147482623"},
              {"/shape/batch", "65535"}},
             {"/shape: ", "beyond any device"},
             {{"/shape/window", "1024"}, {"/shape/sinks", "64"}}}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Gemv, Validate,
    testing::Values(
        Rule{"vectors_fill_a_row",
             false,
             {{"/shape/in_features", "1020"}},
             {"/weights/vector_size: 8 does not divide in_features 1020"},
             {{"/shape/in_features", "1032"}}},
        Rule{"the_lattice_has_codes_of_16_bits",
             false,
             {{"/weights/decoder", R"("e8p")"}},
             {"/weights/decoder: e8p makes 8 elements of 16 bits, not 8 of 8"},
             {{"/weights/decoder", R"("e8p")"}, {"/weights/index_bits", "16"}}},
        Rule{"the_lattice_has_no_integers",
             false,
             {{"/weights/decoder", R"("e8p")"},
              {"/weights/index_bits", "16"},
              {"/weights/entry_type", R"("int8")"}},
             {"/weights/entry_type: ", "set it to element"},
             {{"/weights/entry_type", R"("int8")"}, {"/weights/stage_scales", "true"}}},
        Rule{"integers_have_scales",
             false,
             {{"/weights/entry_type", R"("int8")"}},
             {"/weights/entry_type: ", "stage_scales to true"},
             {{"/weights/entry_type", R"("int8")"}, {"/weights/stage_scales", "true"}}},
        Rule{"weights_have_no_heads",
             false,
             {{"/weights/scope", R"("head")"}},
             {"/weights/scope: ", "use tensor, channel_group or tile"},
             {{"/weights/scope", kGroup}}},
        Rule{"a_tile_needs_rows",
             false,
             {{"/weights/scope", kTile}, {"/weights/tile_columns", "8"}},
             {"/weights/tile_rows: tile_rows and tile_columns go with scope tile, both above 0"},
             {{"/weights/scope", kTile},
              {"/weights/tile_rows", "1"},
              {"/weights/tile_columns", "8"}}},
        Rule{"a_tile_needs_columns",
             false,
             {{"/weights/scope", kTile}, {"/weights/tile_rows", "8"}},
             {"/weights/tile_rows: ", "both above 0"},
             {{"/weights/scope", kTile},
              {"/weights/tile_rows", "8"},
              {"/weights/tile_columns", "1024"}}},
        Rule{"tile_rows_need_their_scope",
             false,
             {{"/weights/tile_rows", "8"}},
             {"/weights/tile_rows: ", "go with scope tile"},
             {{"/weights/tile_rows", "0"}}},
        Rule{"tile_columns_need_their_scope",
             false,
             {{"/weights/tile_columns", "8"}},
             {"/weights/tile_rows: ", "go with scope tile"},
             {{"/weights/tile_columns", "0"}}},
        Rule{"tiles_hold_whole_vectors",
             false,
             {{"/weights/scope", kTile},
              {"/weights/tile_rows", "8"},
              {"/weights/tile_columns", "12"}},
             {"/weights/tile_columns: 12 is not a multiple of vector_size 8"},
             {{"/weights/scope", kTile},
              {"/weights/tile_rows", "8"},
              {"/weights/tile_columns", "16"}}},
        Rule{"groups_hold_whole_vectors",
             false,
             {{"/weights/scope", kGroup}, {"/weights/group_channels", "12"}},
             {"/weights/group_channels: 12 is not a multiple of vector_size 8"},
             {{"/weights/scope", kGroup}, {"/weights/group_channels", "24"}}},
        Rule{"no_smooth",
             false,
             {{"/weights/smooth", "true"}},
             {"/weights: smooth and hadamard transform keys only; remove them here"},
             {{"/weights/output_scales", "true"}}},
        Rule{"no_hadamard",
             false,
             {{"/weights/hadamard", "true"}},
             {"/weights: smooth and hadamard transform keys only; remove them here"},
             {{"/weights/stage_scales", "true"}}},
        Rule{"matrix_beyond_any_device",
             false,
             {{"/shape/out_features", "16777216"}, {"/shape/in_features", "1048576"}},
             {"/shape: a matrix of 1.76e+13 elements", "at most 1e+13"},
             {{"/shape/out_features", "16777216"}, {"/shape/in_features", "524288"}}}),
    [](const auto& test) { return test.param.name; });

// Not reachable through config.json, whose reader drops or refuses the transforms of values.
TEST(ValidateProblem, ValuesAreNeverTransformed) {
  for (const bool smooth : {false, true}) {
    auto op = std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
    EXPECT_NO_THROW(validate(op, "here"));
    (smooth ? op.values.smooth : op.values.hadamard) = true;
    expect_words(message_of([&] { validate(op, "here"); }),
                 {"here: /values: smooth and hadamard transform keys only", "remove them"});
  }
}

}  // namespace
}  // namespace vqgen

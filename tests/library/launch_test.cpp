// Results of prepared ops on the host backend, judged by the double-precision reference at each of
// their sizes, and an op's description.
#include "tests/library/host_runtime.h"
#include "tests/library/trials.h"

namespace vqgen::library::test {
namespace {

void expect_right(const OwnedOp& prepared, const AttentionDecode& op, std::int64_t tokens) {
  SCOPED_TRACE(tokens);
  AttentionTrial trial(host(), op, tokens);
  ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
  trial.expect_right();
}

void expect_right(const OwnedOp& prepared, const Linear& op, int rows) {
  SCOPED_TRACE(rows);
  LinearTrial trial(host(), op, rows);
  ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
  trial.expect_right();
}

TEST(Launch, AttentionIsRightAtAllTokenCounts) {
  const Json config = small_attention();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 977, 1024, 1025, 1500}) expect_right(prepared, op, tokens);
}

// This workspace has partial scores before the splits' sums: the other layout.
TEST(Launch, AttentionByChannelsHasItsScoresInTheWorkspace) {
  const Json config = edited(
      attention_json(),
      {{"/shape/head_dim", "64"}, {"/shape/tokens", "300"}, {"/plan", R"({"dataflow": "channels",
                                                              "splits": 2})"}});
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 211, 300}) expect_right(prepared, op, tokens);
}

// Some sequences have several query tokens and some none, in the cache and fresh, in both dataflows
// whose blocks wait for each other.
TEST(Launch, SeveralQueryTokensAreRight) {
  for (const char* plan : {R"({"dataflow": "channels", "splits": 2})",
                           R"({"dataflow": "mma", "splits": 3, "combine": "last_block"})"}) {
    const Json config = edited(attention_json(), {{"/shape/head_dim", "64"},
                                                  {"/shape/tokens", "300"},
                                                  {"/shape/recent_tokens", "8"},
                                                  {"/shape/query_tokens", "5"},
                                                  {"/plan", plan}});
    const OwnedOp prepared(config);
    ASSERT_NE(prepared.op, nullptr);
    const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
    for (const std::int64_t tokens : {1, 210, 299}) expect_right(prepared, op, tokens);
  }
}

TEST(Launch, TreesOfDraftsAreRight) {
  for (const char* plan : {R"({"dataflow": "simt"})",
                           R"({"dataflow": "mma", "splits": 3, "combine": "last_block"})"}) {
    const Json config = edited(attention_json(), {{"/shape/head_dim", "64"},
                                                  {"/shape/tokens", "300"},
                                                  {"/shape/recent_tokens", "8"},
                                                  {"/shape/query_tokens", "40"},
                                                  {"/shape/tree_mask", "true"},
                                                  {"/plan", plan}});
    const OwnedOp prepared(config);
    ASSERT_NE(prepared.op, nullptr);
    const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
    for (const std::int64_t tokens : {41, 299}) expect_right(prepared, op, tokens);
  }
}

// Launches with the last block's merge, repeatedly with one workspace: each leaves its counters at
// 0.
TEST(Launch, TheLastBlockMergesAsOftenAsWanted) {
  const Json last = R"({"splits": 2, "combine": "last_block"})"_json;
  const Json of_attention =
      edited(attention_json(),
             {{"/shape/head_dim", "64"}, {"/shape/tokens", "300"}, {"/plan", last.dump()}});
  const OwnedOp attention(of_attention);
  ASSERT_NE(attention.op, nullptr);
  AttentionTrial heads(host(), std::get<AttentionDecode>(read_config(of_attention, "test").problem),
                       211);
  ASSERT_EQ(heads.launch(attention.op), VQGEN_OK) << vqgen_last_error();
  heads.expect_right();
  const Json of_gemv = edited(small_gemv(), {{"/shape/m", "1"}, {"/plan", last.dump()}});
  const OwnedOp gemv(of_gemv);
  ASSERT_NE(gemv.op, nullptr);
  LinearTrial product(host(), *as_linear(read_config(of_gemv, "test").problem), 1);
  ASSERT_EQ(product.launch(gemv.op), VQGEN_OK) << vqgen_last_error();
  product.expect_right();
  for (int again = 0; again < 2; ++again) {
    heads.poison();
    ASSERT_EQ(heads.relaunch(attention.op, nullptr), VQGEN_OK) << vqgen_last_error();
    heads.expect_right();
    product.poison();
    ASSERT_EQ(product.relaunch(gemv.op, nullptr), VQGEN_OK) << vqgen_last_error();
    product.expect_right();
  }
}

TEST(Launch, GemvIsRightAtAllRowCounts) {
  const Json config = small_gemv();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const Linear op = *as_linear(read_config(config, "test").problem);
  for (const int rows : {1, 2, 3, 4, 5}) expect_right(prepared, op, rows);
}

// With fewer rows than prepared for: one kernel serves all.
TEST(Launch, ProductsOfExpertsAreRight) {
  const Json config = edited(small_gemv(), {{"/shape/experts", "5"}, {"/shape/total_rows", "12"}});
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 1), 12);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 13), 0);
  const Linear op = *as_linear(read_config(config, "test").problem);
  for (const int rows : {1, 5, 11, 12}) expect_right(prepared, op, rows);
  // An empty batch needs no x and y.
  LinearTrial none(host(), op, 1);
  none.args().m = 0;
  none.args().x = none.args().y = nullptr;
  EXPECT_EQ(none.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
  const Json said = parse_json(vqgen_op_description(prepared.op), "description");
  std::map<std::string, Json> shapes;
  for (const Json& each : said["arguments"]) shapes[each["name"]] = each["shape"];
  EXPECT_EQ(shapes["x"][0], 12);
  EXPECT_EQ(shapes["expert_rows"], Json({6}));
  EXPECT_EQ(shapes["weights.codes"][0], 5);
}

// The host backend judges the integers that it can read before a kernel uses them.
TEST(Launch, RowsOfExpertsThatCannotBeAreRefused) {
  const Json config = edited(small_gemv(), {{"/shape/experts", "3"}, {"/shape/total_rows", "9"}});
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  LinearTrial trial(host(), *as_linear(read_config(config, "test").problem), 9);
  const auto refused = [&](const std::vector<std::int32_t>& offsets, const char* words) {
    const std::size_t bytes = offsets.size() * sizeof(std::int32_t);
    ASSERT_EQ(vqgen_register_host_memory(host(), offsets.data(), bytes), VQGEN_OK);
    trial.args().expert_rows = offsets.data();
    EXPECT_EQ(trial.launch(prepared.op), VQGEN_BAD_INPUT);
    expect_words(vqgen_last_error(), {words});
    vqgen_unregister_host_memory(host(), offsets.data(), bytes);
  };
  const auto rows = static_cast<std::int32_t>(trial.args().m);
  refused({0, 2, 1, 3}, "expert_rows[1] and [2] are 2 and 1");
  refused({-1, 0, 1, 2}, "expert_rows[0] and [1] are -1 and 0");
  refused({0, 0, 1, rows + 1}, "lie within 0..m");
  refused({0, 6, 6, 6}, "expert 0 has 6 rows");
  trial.args().expert_rows = nullptr;
  EXPECT_EQ(trial.launch(prepared.op), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"expert_rows", "is null"});
  trial.args().m = 10;
  EXPECT_EQ(trial.launch(prepared.op), VQGEN_RANGE);
  const OwnedOp plain(small_gemv());
  LinearTrial other(host(), *as_linear(read_config(small_gemv(), "test").problem), 2);
  const std::int32_t zero = 0;
  other.args().expert_rows = &zero;
  EXPECT_EQ(other.launch(plain.op), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"the config has no experts"});
}

// Sizes between the buckets 1, 2, 4, 8, 16 and 21 too.
TEST(Launch, GemmIsRightAtRowCountsBetweenItsBuckets) {
  const Json config = edited(small_gemv(), {{"/op", R"("gemm")"}, {"/shape/m", "21"}});
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 5), 8);
  const Linear op = *as_linear(read_config(config, "test").problem);
  for (const int rows : {1, 3, 5, 7, 8, 9, 15, 17, 20, 21}) expect_right(prepared, op, rows);
}

// Caches with fewer tokens than prepared for, whose heads are padded to whole groups.
TEST(Launch, CodesOfOtherLayoutsAreRight) {
  const Json of_attention =
      edited(small_attention(), {{"/keys/layout", R"({"rows": 2, "words": 2})"},
                                 {"/values/layout", R"({"rows": 4})"},
                                 {"/shape/tokens", "300"}});
  const OwnedOp attention(of_attention);
  ASSERT_NE(attention.op, nullptr);
  const auto op = std::get<AttentionDecode>(read_config(of_attention, "test").problem);
  for (const std::int64_t tokens : {1, 211, 299}) expect_right(attention, op, tokens);
  const Json of_gemv = edited(small_gemv(), {{"/weights/layout", R"({"rows": 4})"}});
  const OwnedOp gemv(of_gemv);
  ASSERT_NE(gemv.op, nullptr);
  expect_right(gemv, *as_linear(read_config(of_gemv, "test").problem), 2);
}

// Caches smaller than the op was prepared for, with the new tokens at their end.
TEST(Launch, AppendIsRightAtAllCapacities) {
  const Json config = small_append();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  EXPECT_EQ(vqgen_op_workspace_bytes(prepared.op), 0u);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 1), 30);
  const auto op = std::get<KvAppend>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 3, 17, 30}) {
    SCOPED_TRACE(tokens);
    AppendTrial trial(op, host(), tokens);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();  // again: the same
    trial.expect_right();
  }
}

// The first tokens of longer sequences, by the kernels of two sizes.
TEST(Launch, DecodeIsRightForAllTokens) {
  const Json config = small_dequantize();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<KvDequantize>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 33, 1023, 1024, 1025, 1100}) {
    SCOPED_TRACE(tokens);
    DequantizeTrial trial(op, host(), tokens);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

// One kernel for all rows, in place or apart.
TEST(Launch, MergeIsRightForAllRows) {
  const Json config = small_merge();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  EXPECT_EQ(vqgen_op_workspace_bytes(prepared.op), 0u);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 1), 100);
  EXPECT_EQ(vqgen_op_bucket(prepared.op, 101), 0);
  const auto op = std::get<AttentionMerge>(read_config(config, "test").problem);
  for (const std::int64_t rows : {1, 2, 3, 4, 33, 99, 100}) {
    SCOPED_TRACE(rows);
    MergeTrial trial(op, host(), rows);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

TEST(Launch, MemoryThatTheHostDoesNotKnowIsAFaultThatNamesTheKernel) {
  const Json config = small_gemv();
  const OwnedOp prepared(config);
  alignas(16) static char elsewhere[16];
  vqgen_linear_args args{};
  args.struct_bytes = sizeof(args);
  args.m = 1;
  args.x = elsewhere;
  args.y = elsewhere;
  args.weights.codes = args.weights.codebooks = elsewhere;
  args.output_scales = reinterpret_cast<const float*>(elsewhere);
  const std::size_t bytes = vqgen_op_workspace_bytes(prepared.op);
  const DeviceBuffer workspace(host()->registry->backend(), bytes);
  EXPECT_EQ(vqgen_linear_launch(prepared.op, &args, workspace.data(), bytes, nullptr),
            VQGEN_DEVICE);
  expect_words(vqgen_last_error(), {"gemv_"});
}

TEST(Launch, AnOpSaysWhatItIs) {
  const OwnedOp prepared(small_attention());
  const Json said = parse_json(vqgen_op_description(prepared.op), "description");
  EXPECT_EQ(read_config(said.at("problem"), "said").problem,
            read_config(small_attention(), "test").problem);
  EXPECT_EQ(said.at("workspace_bytes"), vqgen_op_workspace_bytes(prepared.op));
  EXPECT_EQ(said.at("buckets").back().at("most"), 1500);
  std::vector<std::string> names;
  for (const Json& each : said.at("arguments")) names.push_back(each.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"query", "out", "lse", "keys.codes", "keys.codebooks",
                                             "keys.scales", "values.codes", "values.codebooks",
                                             "key_smooth", "raw_keys", "raw_values", "lengths",
                                             "recent_counts", "sinks"}));
  EXPECT_EQ(said.at("arguments").at(3).at("shape"), Json({2, 2, 1500, 4}));

  const OwnedOp append(small_append());
  const Json of_append = parse_json(vqgen_op_description(append.op), "description");
  names.clear();
  for (const Json& each : of_append.at("arguments")) names.push_back(each.at("name"));
  EXPECT_EQ(names,
            (std::vector<std::string>{"new_keys", "new_values", "positions", "counts", "keys.codes",
                                      "keys.codebooks", "keys.scales", "values.codes",
                                      "values.codebooks", "key_smooth", "raw_keys", "raw_values"}));
  EXPECT_EQ(of_append.at("arguments").at(0).at("shape"), Json({2, 4, 2, 64}));
  EXPECT_EQ(of_append.at("arguments").at(10).at("shape"), Json({2, 2, 5, 64}));

  const OwnedOp decode(small_dequantize());
  const Json of_dequantize = parse_json(vqgen_op_description(decode.op), "description");
  names.clear();
  for (const Json& each : of_dequantize.at("arguments")) names.push_back(each.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"out_keys", "out_values", "keys.codes",
                                             "keys.codebooks", "keys.scales", "values.codes",
                                             "values.codebooks", "key_smooth", "raw_keys",
                                             "raw_values", "lengths", "recent_counts", "sinks"}));
  EXPECT_EQ(of_dequantize.at("arguments").at(0).at("shape"), Json({2, 2, 1100, 64}));

  const OwnedOp merge(small_merge());
  const Json of_merge = parse_json(vqgen_op_description(merge.op), "description");
  names.clear();
  for (const Json& each : of_merge.at("arguments")) names.push_back(each.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"out", "lse", "outs.0", "lses.0", "outs.1", "lses.1",
                                             "outs.2", "lses.2"}));
  EXPECT_EQ(of_merge.at("arguments").at(6).at("shape"), Json({100, 8, 80}));
  EXPECT_EQ(of_merge.at("arguments").at(7).at("shape"), Json({100, 8}));
  EXPECT_EQ(of_merge.at("buckets").at(0).at("elements_alignment"), 16);
}

}  // namespace
}  // namespace vqgen::library::test

// Results of prepared ops on the host backend, judged by the double-precision reference, at each of
// their sizes; and what an op says of itself.
#include <cstdlib>

#include "runtime/device_data.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/hard_input.h"
#include "runtime/verify/reference_attention.h"
#include "runtime/verify/reference_linear.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

vqgen_quantized public_args(const vq::QuantizedArgs& args) {
  return {args.codes, args.codebooks, args.scales, args.batch_stride, args.head_stride};
}

// One runtime for all tests. VQGEN_TEST_CACHE, if set, keeps its kernels between runs.
vqgen_runtime* host() {
  static const std::unique_ptr<vqgen_runtime, decltype(&vqgen_runtime_destroy)> runtime(
      [] {
        vqgen_options options;
        vqgen_options_init(&options);
        options.backend = VQGEN_HOST;
        options.threads = 2;
        const char* folder = std::getenv("VQGEN_TEST_CACHE");
        options.cache_dir = folder != nullptr ? folder : "";
        vqgen_runtime* made = nullptr;
        EXPECT_EQ(vqgen_runtime_create(&options, &made), VQGEN_OK) << vqgen_last_error();
        return made;
      }(),
      &vqgen_runtime_destroy);
  return runtime.get();
}

struct OwnedOp {
  explicit OwnedOp(const Json& config) {
    EXPECT_EQ(vqgen_prepare(host(), config.dump().c_str(), nullptr, &op), VQGEN_OK)
        << vqgen_last_error();
  }
  OwnedOp(const OwnedOp&) = delete;
  OwnedOp& operator=(const OwnedOp&) = delete;
  ~OwnedOp() { vqgen_op_release(op); }
  vqgen_op* op = nullptr;
};

// Attention over `tokens` of them with an op that may have been prepared for more.
void expect_right(const OwnedOp& prepared, AttentionDecode op, std::int64_t tokens) {
  SCOPED_TRACE(tokens);
  op.shape.tokens = tokens;
  const AttentionData data = make_attention_data(
      op, {.seed = static_cast<std::uint64_t>(tokens), .lengths = LengthPattern::ragged});
  Backend& backend = host()->registry->backend();
  DeviceData device(backend);
  const auto results = static_cast<std::size_t>(op.shape.batch * op.shape.query_heads);
  vqgen_attention_args args{};
  args.struct_bytes = sizeof(args);
  args.tokens = tokens;
  args.query = device.input(data.queries);
  args.keys = public_args(device.quantized(data.keys, op.shape.shared_cache));
  args.values = public_args(device.quantized(data.values, op.shape.shared_cache));
  args.key_smooth = device.input(data.keys.smooth);
  args.raw_keys = device.input(data.raw_keys);
  args.raw_values = device.input(data.raw_values);
  args.raw_head_stride = std::int64_t{op.raw_slots()} * op.shape.head_dim;
  args.raw_batch_stride = op.shape.shared_cache ? 0 : op.shape.kv_heads * args.raw_head_stride;
  args.lengths = device.input(data.lengths);
  args.windows = device.input(data.windows);
  args.sinks = device.input(data.sinks);
  args.out = device.output<std::uint16_t>(results * static_cast<std::size_t>(op.shape.head_dim));
  args.lse = device.output<float>(results);
  device.poison_outputs();
  // Exactly what is asked for, poisoned: the host backend finds a byte too many.
  const std::size_t bytes = vqgen_op_workspace_bytes_for(prepared.op, tokens);
  const DeviceBuffer workspace(backend, bytes);
  backend.upload(workspace.data(), std::vector<std::byte>(bytes, std::byte{0xff}));
  ASSERT_EQ(vqgen_attention_launch(prepared.op, &args, workspace.data(), bytes, nullptr), VQGEN_OK)
      << vqgen_last_error();
  const AttentionResult reference =
      reference_attention(data, 1 / std::sqrt(static_cast<double>(op.shape.head_dim)));
  const Comparison out = compare(reference.out, device.fetch<std::uint16_t>(0), op.dtype);
  EXPECT_TRUE(out.ok) << out.rel_err;
  EXPECT_TRUE(compare_lse(reference.lse, device.fetch<float>(1), op.dtype).ok);
  device.require_inputs_unchanged();
}

void expect_right(const OwnedOp& prepared, Linear op, int rows) {
  SCOPED_TRACE(rows);
  // The data of the bucket, of which `rows` rows count.
  op.shape.rows = static_cast<int>(vqgen_op_bucket(prepared.op, rows));
  const LinearData data = make_linear_data(op, {.seed = static_cast<std::uint64_t>(rows)});
  Backend& backend = host()->registry->backend();
  DeviceData device(backend);
  vqgen_linear_args args{};
  args.struct_bytes = sizeof(args);
  args.rows = rows;
  args.row_capacity = op.shape.rows;
  args.x = device.input(data.x);
  args.weights = public_args(device.quantized(data.weights, true));
  args.output_scales = device.input(data.weights.output_scales);
  args.y =
      device.output<std::uint16_t>(static_cast<std::size_t>(op.shape.rows * op.shape.out_features));
  device.poison_outputs();
  const std::size_t bytes = vqgen_op_workspace_bytes_for(prepared.op, rows);
  const DeviceBuffer workspace(backend, bytes);
  ASSERT_EQ(vqgen_linear_launch(prepared.op, &args, workspace.data(), bytes, nullptr), VQGEN_OK)
      << vqgen_last_error();
  const Comparison y = compare(reference_linear(data), device.fetch<std::uint16_t>(0), op.dtype);
  EXPECT_TRUE(y.ok) << y.rel_err;
}

Json small_attention() {
  return edited(attention_json(), {{"/shape/query_heads", "4"},
                                   {"/shape/head_dim", "64"},
                                   {"/shape/tokens", "1500"},
                                   {"/shape/window", "8"},
                                   {"/shape/sinks", "3"},
                                   {"/keys", R"({"vector_size": 4, "index_bits": 8,
                                                 "smooth": true, "stage_scales": true})"}});
}

TEST(Launch, AttentionIsRightAtAllTokenCounts) {
  const Json config = small_attention();
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 977, 1024, 1025, 1500}) expect_right(prepared, op, tokens);
}

// Bytes of partial scores, then those of the splits: the other layout of a workspace.
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

TEST(Launch, GemvIsRightAtAllRowCounts) {
  const Json config = edited(gemv_json(), {{"/shape/rows", "3"},
                                           {"/shape/out_features", "130"},
                                           {"/shape/in_features", "512"},
                                           {"/weights", R"({"vector_size": 8, "index_bits": 8,
                                                            "output_scales": true})"}});
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const Linear op = *as_linear(read_config(config, "test").problem);
  for (const int rows : {1, 2, 3}) expect_right(prepared, op, rows);
}

TEST(Launch, MemoryThatTheHostDoesNotKnowIsAFaultThatNamesTheKernel) {
  const Json config = edited(gemv_json(), {{"/shape/rows", "3"},
                                           {"/shape/out_features", "130"},
                                           {"/shape/in_features", "512"},
                                           {"/weights", R"({"vector_size": 8, "index_bits": 8,
                                                            "output_scales": true})"}});
  const OwnedOp prepared(config);
  alignas(16) static char elsewhere[16];
  vqgen_linear_args args{};
  args.struct_bytes = sizeof(args);
  args.rows = 1;
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
                                             "windows", "sinks"}));
  EXPECT_EQ(said.at("arguments").at(3).at("shape"), Json({2, 2, 1500, 4}));
}

}  // namespace
}  // namespace vqgen::library::test

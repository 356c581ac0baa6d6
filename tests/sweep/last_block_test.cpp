// Merging by the last block gives the bits of the combine kernel, in every order of the blocks,
// launch after launch with one workspace.
#include <gtest/gtest.h>

#include <cstring>

#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class LastBlock : public SweepTest<> {};

Plan merging(Plan plan) {
  EXPECT_TRUE(change_own(
      plan, [](auto& own) requires requires { own.combine = Combine{}; } {
        own.combine = Combine::last_block;
      }));
  return plan;
}

bool same_bits(const AttentionOutput& a, const AttentionOutput& b) {
  return a.out == b.out && a.lse.size() == b.lse.size() &&
         std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
}
bool same_bits(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  return a == b;
}

template <class Data>
void expect_bits_of_the_kernel(const Problem& problem, const Plan& plan, const Data& data) {
  SCOPED_TRACE(to_json(plan).dump());
  for (const Plan& each : {plan, merging(plan)}) {
    const Verdict verdict = check(each, problem, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
  }
  const auto expected = Kernel(*sweep_backend(), problem, plan, sweep_gpu()).run(data);
  for (const std::size_t order : {1u, 2u}) {
    Kernel kernel(*sweep_backend(order), problem, merging(plan), sweep_gpu());
    EXPECT_TRUE(same_bits(expected, kernel.run(data))) << order;
  }
}

// Groups of 5 heads, of which a block serves 3; 4 tiles, so that 7 and 20 splits include empty
// ones; a sequence without tokens.
AttentionDecode ragged_attention() {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 10,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 200,
              .recent_tokens = 30,
              .sinks = 3};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::head};
  op.values = {.vector_size = 4, .index_bits = 7, .scope = Scope::channel_group};
  op.values.group_channels = 16;
  return op;
}

AttentionData ragged_data(const AttentionDecode& op) {
  AttentionData data = make_attention_data(op, {.seed = 31, .lengths = LengthPattern::ragged});
  data.lengths[1] = data.recent_counts[1] = data.sinks[1] = 0;
  return data;
}

TEST_F(LastBlock, OfAttentionGivesTheBitsOfTheKernel) {
  const AttentionDecode op = ragged_attention();
  const AttentionData data = ragged_data(op);
  std::uint64_t number = 0;
  for (const Plan& like : {Plan(AttentionSimt{}), Plan(AttentionMma{}), Plan(AttentionLut{})}) {
    Plan plan = rules_plan(like, op, sweep_gpu());
    for (const int splits : a_third({7, 20, 300}, third_after(number++))) {
      ASSERT_TRUE(change_own(
          plan, [&](auto& own) requires requires { own.heads_per_block = 1; } {
            own.threads = 128;
            own.heads_per_block = 3;
            own.splits = splits;
          }));
      expect_bits_of_the_kernel(op, plan, data);
    }
  }
}

// 17 splits, all with tokens: a group of 16 that is merged at once, and one of the last alone.
TEST_F(LastBlock, AGroupOfOneSplitCounts) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .tokens = 17 * 128};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6};
  const AttentionData data = make_attention_data(op, {.seed = 37, .lengths = LengthPattern::full});
  const AttentionResult reference = reference_of(op, data);
  auto plan = rules_plan<AttentionSimt>(op, sweep_gpu());
  plan.threads = 64;
  plan.splits = 17;
  const auto right = [&](Kernel& kernel) {
    return is_right(reference, kernel.run(data), op.dtype);
  };
  for (const Plan& each : {Plan(plan), merging(plan)}) {
    ASSERT_TRUE(check(each, op, sweep_gpu()).ok) << check(each, op, sweep_gpu()).reason;
    Kernel kernel(*sweep_backend(), op, each, sweep_gpu());
    EXPECT_TRUE(right(kernel));
  }
  const Fault last_left_out = {"group * kTogether < count; ++group",
                               "group * kTogether + 1 < count; ++group"};
  expect_faults_found(op, merging(plan), std::span(&last_left_out, 1), right);
}

// 3 rows, 101 outputs and 1000 columns fill no block; with 5 splits of 8 chunks one has none.
TEST_F(LastBlock, OfProductsGivesTheBitsOfTheKernel) {
  Gemv op;
  op.shape = {.rows = 3, .out_features = 101, .in_features = 1000};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2, .scope = Scope::tensor};
  op.weights.output_scales = true;
  const LinearData data = make_linear_data(op, {.seed = 32});
  auto lanes = rules_plan<LinearSimt>(op, sweep_gpu());
  lanes.threads = 128;
  for (const auto& [chunk, splits] : a_third({std::pair{128, 2}, {128, 5}, {32, 20}, {32, 32}})) {
    lanes.chunk_columns = chunk;
    lanes.splits = splits;
    expect_bits_of_the_kernel(op, lanes, data);
  }
  LinearMma fragments{.threads = 128,
                      .outputs_per_warp = 8,
                      .chunk_columns = 128,
                      .splits = 5,
                      .warps_along_columns = 2,
                      .rows_per_block = 4,
                      .fragment_rows = 4};
  expect_bits_of_the_kernel(op, fragments, data);
  const LinearLut tables{.threads = 64, .outputs_per_warp = 12, .rows_per_block = 4};
  Gemv one = op;  // row; the tables of more rows exceed a block
  one.shape.rows = 1;
  ASSERT_EQ(call_shape(tables, one).splits, 4);
  expect_bits_of_the_kernel(one, tables, make_linear_data(one, {.seed = 33}));
}

TEST_F(LastBlock, OfBlocksOfRowsGivesTheBitsOfTheKernel) {
  Gemm op;
  op.shape = {.rows = 37, .out_features = 50, .in_features = 512};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  LinearMma plan{.threads = 64, .chunk_columns = 128, .splits = 3, .rows_per_block = 16};
  expect_bits_of_the_kernel(op, plan, make_linear_data(op, {.seed = 34}));
}

// Blocks that really run at once, in the host's threads: the last one finds all partials.
TEST_F(LastBlock, OnSeveralThreadsGivesTheBitsOfTheKernel) {
  const auto threads = test_host({.order = LaneOrder::random, .seed = 3, .threads = 4});
  const GpuSpec gpu = find_gpu("h200");
  const AttentionDecode op = ragged_attention();
  const AttentionData data = ragged_data(op);
  auto plan = rules_plan<AttentionMma>(op, gpu);
  plan.threads = 64;
  plan.splits = 7;
  const AttentionOutput expected = Kernel(*threads, op, plan, gpu).run(data);
  Kernel kernel(*threads, op, merging(plan), gpu);
  for (int again = 0; again < 20; ++again) EXPECT_TRUE(same_bits(expected, kernel.run(data)));
}

// Launches the kernel of `source` `times` times with one workspace.
std::vector<std::uint16_t> launched(const KernelSource& source, const Gemv& op, const Plan& plan,
                                    const LinearData& data, int times) {
  Backend& backend = *sweep_backend();
  const auto kernel = backend.load(backend.compile(source), source);
  DeviceCall call(backend, op, data);
  const auto args = call.args(plan).front();
  for (int i = 0; i < times; ++i) launch_all(backend, *kernel, source, args);
  call.require_kept();
  return call.linear_output();
}

TEST_F(LastBlock, LeavesTheWorkspaceAsItFoundIt) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 512};
  op.weights = {.vector_size = 8, .index_bits = 6, .scope = Scope::tensor};
  const LinearData data = make_linear_data(op, {.seed = 35});
  auto plan = rules_plan<LinearSimt>(op, sweep_gpu());
  plan.threads = 64;
  plan.chunk_columns = 128;
  plan.splits = 3;
  plan.combine = Combine::last_block;
  const KernelSource right = generate(op, plan, sweep_gpu(), sweep_backend()->machine(), {});
  const auto once = launched(right, op, plan, data, 1);
  EXPECT_EQ(once, launched(right, op, plan, data, 2));
  EXPECT_EQ(once, launched(right, op, plan, data, 3));

  const KernelSource wrong = with_fault(right, "store_global(counter, 0u);", ";");
  ASSERT_FALSE(wrong.text == right.text);
  const std::string found =
      message_of([&] { launched(wrong, op, plan, data, 1); }, ErrorKind::verification_failed);
  EXPECT_NE(found.find("counters of its workspace that are not 0"), std::string::npos) << found;
}

}  // namespace
}  // namespace vqgen::test

// append_mma gives the bits of append_simt on inputs for which tensor-core estimates decide worst;
// and such input finds kernels that trust estimates too much.
#include <gtest/gtest.h>

#include <limits>

#include "tests/sweep/cases.h"
#include "tests/sweep/hard_append.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/prompts.h"

namespace vqgen::test {
namespace {

KvAppend hard_problem(DType dtype) {
  KvAppend op;
  op.dtype = dtype;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 80,
              .new_tokens = 37,
              .recent_tokens = 4,
              .sinks = 2};
  return op;
}

// Parts with entries of elements, which hard data may scale.
VqFormat of_elements(VqFormat format) {
  for (VqFormat& part : format.parts) part.entry_type = EntryType::element;
  return format;
}

std::vector<KvAppend> hard_problems() {
  std::vector<KvAppend> problems;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KvAppend op = hard_problem(dtype);
    op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    op.values = {.vector_size = 8, .index_bits = 10, .scope = Scope::tensor};
    problems.push_back(op);
    if (dtype == DType::bf16) continue;
    op.keys = {.vector_size = 2, .index_bits = 8, .scope = Scope::channel_group};
    op.values = {
        .vector_size = 4, .index_bits = 6, .num_codebooks = 2, .scope = Scope::channel_group};
    op.values.stage_scales = true;
    problems.push_back(op);
    op.keys = {.vector_size = 8, .index_bits = 3, .num_codebooks = 3, .scope = Scope::head};
    op.keys.hadamard = op.keys.smooth = op.keys.stage_scales = true;
    op.values = {.vector_size = 2, .index_bits = 5, .scope = Scope::head};
    op.shape.page_tokens = 16;
    problems.push_back(op);
    // As KLT caches have them; wide entries beside narrow ones.
    op.keys = of_elements(in_runs({{16, 2}, {16, 4}, {32, 8}}, Scope::head));
    op.values = of_elements(in_runs({{32, 4}, {32, 16}}, Scope::head));
    problems.push_back(op);
  }
  return problems;
}

class AppendByFragments : public SweepTest<> {};

TEST_F(AppendByFragments, HardInputHasTheBitsOfLanes) {
  for (const KvAppend& op : a_third(hard_problems())) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    expect_bits_of_lanes(op, {AppendMma{.tokens_per_block = 37},
                              AppendMma{.threads = 64, .splits = 4, .tokens_per_block = 5}});
  }
}

// The last block has fewer sequences, and fewer tokens of each.
TEST_F(AppendByFragments, HardInputOfSeveralSequencesHasTheBitsOfLanes) {
  for (KvAppend op : a_third(hard_problems())) {
    op.shape.batch = 5;
    op.shape.new_tokens = 3;
    SCOPED_TRACE(to_json(Problem(op)).dump());
    expect_bits_of_lanes(
        op, {AppendMma{.tokens_per_block = 3, .sequences_per_block = 5},
             AppendMma{
                 .threads = 96, .tokens_per_block = 2, .sequences_per_block = 3, .row_tiles = 2}});
  }
}

// Inactive sequences, sequences at capacity and with few tokens share a block with others; rows of
// NaN there change no row of another sequence.
TEST_F(AppendByFragments, SequencesOfABlockHaveTheirOwnPlacesAndCounts) {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  for (KvAppend op : {hard_problems()[0], hard_problems()[2]}) {
    op.shape.batch = 7;
    op.shape.new_tokens = 2;
    AppendData data = make_append_data(op, {.seed = 61});
    const Plan plan =
        AppendMma{.threads = 128, .tokens_per_block = 2, .sequences_per_block = 4, .row_tiles = 2};
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    Kernel lanes(*sweep_backend(), op, rules_plan<AppendSimt>(op, sweep_gpu()), sweep_gpu());
    Kernel several(*sweep_backend(), op, plan, sweep_gpu());
    const std::vector<std::int32_t> some{-1, 7, 79, 80, 0, kMost, 31};
    for (const auto& positions :
         {some, std::vector<std::int32_t>(7, -1), {-1, -1, -1, -1, 5, -1, -1}}) {
      for (const auto& counts : {std::vector<std::int32_t>{}, {2, 1, 2, 2, 0, 1, -kMost}}) {
        data.positions = positions;
        data.counts = counts;
        const AppendResult right = lanes.run(data);
        EXPECT_TRUE(judge_append(data, right).ok) << judge_append(data, right).why;
        expect_same(right, several.run(data));
      }
    }
    data.positions = {4, 7, 70, 8, 0, 12, 31};
    data.counts.clear();
    const auto row = static_cast<std::size_t>(op.shape.kv_heads * op.shape.head_dim);
    for (std::size_t i = 0; i < row; ++i) {  // token 1 of sequence 2, token 0 of sequence 3
      data.new_keys[5 * row + i] = data.new_values[6 * row + i] = i % 3 == 0 ? 0x7e00 : 0x7c00;
    }
    expect_same(lanes.run(data), several.run(data));
  }
}

// Each fault changes one place of the kernel's text; some hard input reveals it.
TEST_F(AppendByFragments, HardInputFindsKernelsThatTrustEstimates) {
  const KvAppend op = hard_problems().front();
  const Plan plan = rules_plan(AppendMma{}, op, sweep_gpu());
  const Fault faults[] = {
      {"least.other > least.best + margin", "true"},
      {"least.other > least.best + margin", "least.other > least.best"},
      {"low -= to_float", "low -= 0.0f * to_float"},
      {"if (candidate < distance) {", "if (candidate <= distance) {"},
      {"larger(keeps.best, best)", "infinity()"},
  };
  expect_estimates_checked(op, plan, faults);
}

}  // namespace
}  // namespace vqgen::test

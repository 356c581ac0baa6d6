// Heads of values of another size than heads of keys: attention by every dataflow that has them,
// what writes and reads the cache, the law that one size is one size whoever says it, and kernels
// with a fault, which the reference has to find.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_append/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "tests/klt_runs.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct HeadPair {
  int keys, values;
};
constexpr std::array kHeadPairs{HeadPair{192, 128}, HeadPair{128, 64}, HeadPair{64, 128}};

class ValueSizes : public SweepTest<> {
 protected:
  template <class Op>
  static Op problem_of(const HeadPair& sizes, const std::string& format) {
    Op op;
    op.keys = op.values = find_format(format, "test");
    op.values.smooth = op.values.hadamard = false;
    op.shape.batch = 3;
    op.shape.kv_heads = 2;
    op.shape.head_dim = sizes.keys;
    op.shape.value_head_dim = sizes.values;
    op.shape.tokens = 150;
    op.shape.recent_tokens = 21;
    op.shape.sinks = 3;
    if constexpr (std::is_same_v<Op, AttentionDecode>) op.shape.query_heads = 8;
    if constexpr (std::is_same_v<Op, KvAppend>) op.shape.new_tokens = 5;
    return op;
  }
  // KLT formats of each operand's own size.
  template <class Op>
  static Op in_basis(const HeadPair& sizes) {
    auto op = problem_of<Op>(sizes, "vecinfer-d4b8i8");
    op.keys = klt_of(sizes.keys, false);
    op.values = klt_of(sizes.values, true);
    return op;
  }
  template <class Op>
  static void expect_right(const Op& op, const Plan& plan, unsigned seed, bool fresh = false) {
    SweepCase each;
    validate(op, "values");
    each.problem = op;
    each.plan = plan;
    const Verdict verdict = check(plan, op, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    each.input = {.seed = seed, .lengths = LengthPattern::ragged};
    each.input.fresh = fresh;
    EXPECT_EQ(failure_of(each, *sweep_backend(seed), sweep_gpu()), "")
        << op.shape.head_dim << '/' << op.shape.value_dim() << ' ' << dataflow_name(plan);
  }

 private:
  static VqFormat klt_of(int channels, bool values) {
    const int first = std::min(channels / 2, 64);
    VqFormat format = klt_runs({{first, 4}, {channels - first, 8}});
    format.center = !values;
    return format;
  }
};

template <class P>
class ValueSizesOf : public ValueSizes {};
using Dataflows =
    testing::Types<AttentionSimt, AttentionLut, AttentionChannels, AttentionMma, AttentionInt8Mma>;
TYPED_TEST_SUITE(ValueSizesOf, Dataflows);

TYPED_TEST(ValueSizesOf, AreRight) {
  constexpr bool kBytes = std::is_same_v<TypeParam, AttentionInt8Mma>;
  unsigned seed = 1;
  for (const HeadPair& sizes : kHeadPairs) {
    for (const int query_tokens : {1, 3}) {
      auto op = this->template problem_of<AttentionDecode>(
          sizes, kBytes ? "vecinfer-d4b8i8" : "vecinfer-d4b8");
      op.dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
      op.shape.query_tokens = query_tokens;
      op.shape.page_tokens = query_tokens > 1 ? 16 : 0;
      if (query_tokens > 1) {
        op.shape.sinks = 0;
        op.shape.raw_page_tokens = 16;
      }
      const Plan plan = narrow_plan(TypeParam{}, op, sweep_gpu(), 1 + static_cast<int>(seed % 3));
      this->expect_right(op, plan, seed++, query_tokens > 1);
    }
  }
}

TYPED_TEST(ValueSizesOf, AreRightInABasis) {
  if (std::is_same_v<TypeParam, AttentionLut> || std::is_same_v<TypeParam, AttentionChannels> ||
      std::is_same_v<TypeParam, AttentionMma>) {
    GTEST_SKIP() << "has no rows in parts";
  }
  unsigned seed = 20;
  for (const HeadPair& sizes : a_third(kHeadPairs)) {
    for (const int query_tokens : {1, 3}) {
      auto op = this->template in_basis<AttentionDecode>(sizes);
      op.shape.query_tokens = query_tokens;
      op.shape.sink_logits = query_tokens == 1;
      const Plan plan = narrow_plan(TypeParam{}, op, sweep_gpu(), 1 + static_cast<int>(seed % 2));
      this->expect_right(op, plan, seed++, true);
    }
  }
}

// Blocks that share all sequences, whose last ones merge, and codes that come by a ring.
TEST_F(ValueSizes, AreRightBySchedules) {
  const auto op = problem_of<AttentionDecode>(kHeadPairs[0], "vecinfer-d4b8i8");
  AttentionMma elements = std::get<AttentionMma>(narrow_plan(AttentionMma{}, op, sweep_gpu(), 3));
  elements.schedule = Schedule::balanced;
  elements.combine = Combine::last_block;
  expect_right(op, elements, 40);
  AttentionMma ring = std::get<AttentionMma>(narrow_plan(AttentionMma{}, op, sweep_gpu(), 2));
  ring.step_tokens = 16;
  ring.code_stages = 3;
  expect_right(op, ring, 41);
  AttentionInt8Mma bytes =
      std::get<AttentionInt8Mma>(narrow_plan(AttentionInt8Mma{}, op, sweep_gpu(), 3));
  bytes.schedule = Schedule::balanced;
  bytes.combine = Combine::last_block;
  expect_right(op, bytes, 42);
}

TEST_F(ValueSizes, CachesAreWrittenAndReadInEachTransform) {
  unsigned seed = 60;
  for (const HeadPair& sizes : kHeadPairs) {
    for (const bool basis : {false, true}) {
      auto append =
          basis ? in_basis<KvAppend>(sizes) : problem_of<KvAppend>(sizes, "vecinfer-d4b8i8");
      append.shape.tokens = 40;
      expect_right(append, rules_plan<AppendSimt>(append, sweep_gpu()), seed++);
      if (!basis) expect_right(append, rules_plan<AppendMma>(append, sweep_gpu()), seed++);
      auto dense = basis ? in_basis<KvDequantize>(sizes)
                         : problem_of<KvDequantize>(sizes, "vecinfer-d4b8i8");
      dense.shape.tokens = 40;
      if (!basis) {
        dense.shape.sinks = 0;
        dense.shape.raw_page_tokens = 8;
      }
      expect_right(dense, rules_plan<DequantizeSimt>(dense, sweep_gpu()), seed++);
    }
  }
}

// Dataflow histogram has one size, as has int8_mma where it rotates within its blocks.
TEST_F(ValueSizes, WhatHasOneSizeIsRefused) {
  AttentionDecode op = problem_of<AttentionDecode>({128, 64}, "vecinfer-d8b8");
  op.keys = op.values = wide(32, 1, 6);
  op.shape.recent_tokens = op.shape.sinks = 0;
  const Plan bins = rules_plan(AttentionHistogram{}, op, sweep_gpu());
  EXPECT_NE(check(bins, op, sweep_gpu()).reason.find("value_head_dim 64 is not head_dim 128"),
            std::string::npos)
      << check(bins, op, sweep_gpu()).reason;
  op = in_basis<AttentionDecode>({128, 64});
  AttentionInt8Mma plan = rules_plan<AttentionInt8Mma>(op, sweep_gpu());
  EXPECT_TRUE(check(plan, op, sweep_gpu()).ok);
  EXPECT_EQ(plan.fused_basis, 0);
  plan.fused_basis = 1;
  EXPECT_FALSE(check(plan, op, sweep_gpu()).ok);
}

// A size that is head_dim is the same problem, and changes no bit.
TEST_F(ValueSizes, TheSizeOfKeysChangesNoBit) {
  const Json without = {{"op", "attention_decode"},
                        {"shape",
                         {{"batch", 2},
                          {"query_heads", 8},
                          {"kv_heads", 2},
                          {"head_dim", 128},
                          {"tokens", 150},
                          {"recent_tokens", 21}}},
                        {"keys", "vecinfer-d4b8i8"},
                        {"values", "vecinfer-d4b8i8"}};
  Json with = without;
  with["shape"]["value_head_dim"] = 128;
  const Problem problem = read_config(without, "config").problem;
  EXPECT_EQ(problem, read_config(with, "config").problem);
  AttentionDecode given = std::get<AttentionDecode>(problem);
  given.shape.value_head_dim = 128;
  const auto data = [](const AttentionDecode& op) {
    return make_attention_data(op, {.seed = 70, .lengths = LengthPattern::ragged});
  };
  for (const Plan& like : {Plan(AttentionSimt{}), Plan(AttentionMma{}), Plan(AttentionInt8Mma{})}) {
    const Plan plan = narrow_plan(like, problem, sweep_gpu(), 2);
    Kernel plain(*sweep_backend(), problem, plan, sweep_gpu());
    Kernel stated(*sweep_backend(), given, plan, sweep_gpu());
    expect_same_bits(plain.run(data(std::get<AttentionDecode>(problem))), stated.run(data(given)));
  }
}

// Values are longer than keys, so that a faulty kernel stays within its memory.
TEST_F(ValueSizes, FaultsAreFound) {
  AttentionDecode op = problem_of<AttentionDecode>({64, 128}, "vecinfer-d4b8i8");
  op.shape.query_tokens = 3;
  const HardInput input{.seed = 80, .lengths = LengthPattern::ragged, .fresh = true};
  const auto expect_found = [&](const Plan& plan, std::span<const Fault> faults) {
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    const AttentionData data = make_attention_data(op, input);
    const AttentionResult reference = reference_of(op, data);
    expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
      return is_right(reference, faulty.run(data), op.dtype);
    });
  };
  const Fault of_rows[] = {
      {"return i64{slot} * kDim;", "return i64{slot} * Plan::config().head_dim;"},
      {"kOwnStrides ? args.raw_value_head_stride : args.raw_head_stride", "args.raw_head_stride"},
      {"kOwnStrides ? args.raw_value_batch_stride : args.raw_batch_stride",
       "args.raw_batch_stride"},
      {"fresh + row * Rows::kDim", "fresh + row * Plan::config().head_dim"},
      {"place_parts(c.values, c.value_parts, c.value_dim,",
       "place_parts(c.values, c.value_parts, c.head_dim,"}};
  expect_found(narrow_plan(AttentionSimt{}, op, sweep_gpu(), 2), of_rows);
  const Fault of_elements[] = {{"constexpr int kPairs = kConfig.value_dim / 2;",
                                "constexpr int kPairs = kConfig.head_dim / 2;"},
                               {"return value_dim + 4;", "return value_dim / 2 + 4;"}};
  expect_found(narrow_plan(AttentionMma{}, op, sweep_gpu(), 2), of_elements);
  const Fault of_bytes[] = {
      {"i < kConfig.heads_per_block * kConfig.value_dim;",
       "i < kConfig.heads_per_block * kConfig.head_dim;"},
      {"if constexpr (turn < kValueTurns) {", "if constexpr (turn < kKeyTurns) {"},
      {"of_head * Rows<kValues>::kDim", "of_head * Rows<false>::kDim"},
      {"if constexpr (turn + 1 == kValueTurns) ValueCodes", "if constexpr (turn == 0) ValueCodes"}};
  // One warp, whose steps are interleaved.
  expect_found(AttentionInt8Mma{.threads = 32, .heads_per_block = 4, .pipeline_stages = 2},
               of_bytes);

  KvAppend append = problem_of<KvAppend>({64, 128}, "vecinfer-d4b8i8");
  append.shape.tokens = 40;
  const AppendData fresh = make_append_data(append, {.seed = 81});
  const Fault of_new_rows[] = {
      {"+ block_y()) * Raw::kDim;", "+ block_y()) * kConfig.head_dim;"},
      {"return i64{slot} * kDim;", "return i64{slot} * Plan::config().head_dim;"}};
  expect_faults_found(append, rules_plan<AppendSimt>(append, sweep_gpu()), of_new_rows,
                      [&](Kernel& faulty) { return judge_append(fresh, faulty.run(fresh)).ok; });

  KvDequantize dense = in_basis<KvDequantize>({64, 128});
  dense.shape.tokens = 40;
  const AttentionData cache = make_dequantize_data(dense, {.seed = 82});
  const DequantizeResult rows = reference_dequantize(cache);
  const Fault of_dense_rows[] = {
      {"static constexpr int kHeadDim = Raw::kDim;",
       "static constexpr int kHeadDim = kConfig.head_dim;"},
      {"return of == BasisOf::kValues ? c.value_dim : c.head_dim;", "return c.head_dim;"}};
  expect_faults_found(
      dense, rules_plan<DequantizeSimt>(dense, sweep_gpu()), of_dense_rows, [&](Kernel& faulty) {
        return judge_dequantize(cache, rows, faulty.run_dequantize(cache)).comparison.ok;
      });
}

}  // namespace
}  // namespace vqgen::test

// kv_dequantize beside the sweep: attention over its output equals attention_decode, its reference
// equals the quantizer's, plans change no bit, and the judge finds faults.
#include <gtest/gtest.h>

#include <cmath>

#include "quantizer/encode.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

KvDequantize dequantize_problem() {
  KvDequantize op;
  op.shape = {
      .batch = 3, .kv_heads = 2, .head_dim = 64, .tokens = 90, .recent_tokens = 20, .sinks = 3};
  op.keys = {.vector_size = 4, .index_bits = 7, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 5, .scope = Scope::channel_group};
  op.values.group_channels = 16;
  return op;
}

class Decode : public SweepTest<> {
 protected:
  static Kernel kernel(const Problem& op, const Plan& plan) {
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
  // Half of the sequences have raw tokens; each sequence has its own length.
  static AttentionData data_of(const KvDequantize& op) {
    AttentionData data = make_dequantize_data(op, {.seed = 51});
    data.lengths = {90, 41, 2};
    data.recent_counts = {20, 7, 1};
    data.sinks = {3, 0, 2};
    return data;
  }
};

TEST_F(Decode, PlansChangeNoBit) {
  const KvDequantize op = dequantize_problem();
  const AttentionData data = data_of(op);
  const DequantizeOutput right =
      kernel(op, rules_plan<DequantizeSimt>(op, sweep_gpu())).run_dequantize(data);
  const DequantizeVerdict verdict = judge_dequantize(data, reference_dequantize(data), right);
  EXPECT_TRUE(verdict.comparison.ok) << verdict.why;
  for (const DequantizeSimt& plan : {DequantizeSimt{.threads = 32, .tokens_per_block = 7},
                                     DequantizeSimt{.tokens_per_block = 256,
                                     .key_codebook = all_replicated(128, 8),
                                     .value_codebook = {.registers = 2, .shared = 16}}}) {
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    const DequantizeOutput other = kernel(op, plan).run_dequantize(data);
    EXPECT_EQ(right.keys, other.keys);
    EXPECT_EQ(right.values, other.values);
  }
}

// Runs queries over the cache by attention_decode, and over plain tensors, which kv_dequantize
// wrote, by the reference.
TEST_F(Decode, AttentionOverDecodedTensorsIsAttentionDecode) {
  const KvDequantize op = dequantize_problem();
  AttentionDecode attention;
  attention.shape = {.batch = 3,
                     .query_heads = 4,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .tokens = 90,
                     .recent_tokens = 20,
                     .sinks = 3};
  attention.keys = op.keys;
  attention.values = op.values;
  AttentionData data = make_attention_data(attention, {.seed = 52});
  const AttentionData counts = data_of(op);
  data.lengths = counts.lengths;
  data.recent_counts = counts.recent_counts;
  data.sinks = counts.sinks;
  DequantizeOutput dense =
      kernel(op, rules_plan<DequantizeSimt>(op, sweep_gpu())).run_dequantize(data);
  const AttentionOutput fused =
      kernel(attention, rules_plan<AttentionSimt>(attention, sweep_gpu())).run(data);
  const auto scale = static_cast<double>(softmax_scale(attention));
  const auto over_dense = [&] {
    data.original_keys = dense.keys;
    data.original_values = dense.values;
    return reference_attention_unquantized(data, scale);
  };
  const AttentionResult plain = over_dense();
  constexpr double kRoundings = 2;  // of the dense elements and of the result
  EXPECT_TRUE(compare(plain.out, fused.out, op.dtype, kRoundings).ok);
  EXPECT_TRUE(compare_lse(plain.lse, fused.lse, op.dtype, kRoundings).ok);
  // Keys of the other head give other results.
  std::swap_ranges(dense.keys.begin(), dense.keys.begin() + 90 * 64, dense.keys.begin() + 90 * 64);
  EXPECT_FALSE(compare(over_dense().out, fused.out, op.dtype, kRoundings).ok);
}

TEST_F(Decode, WithoutRawTokensTheReferenceIsTheQuantizers) {
  KvDequantize op = dequantize_problem();
  op.shape.recent_tokens = op.shape.sinks = 0;
  const AttentionData data = make_dequantize_data(op, {.seed = 53});
  const DequantizeResult reference = reference_dequantize(data);
  for (const bool keys : {true, false}) {
    const std::vector<double>& expected = keys ? reference.keys : reference.values;
    const FloatTensor by_quantizer = reconstruct(keys ? data.keys : data.values);
    ASSERT_EQ(by_quantizer.data.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(by_quantizer.data[i]), expected[i],
                  1e-5 * (1 + std::abs(expected[i])))
          << i;
    }
  }
}

TEST_F(Decode, TheJudgeFindsAFault) {
  const KvDequantize op = dequantize_problem();
  const AttentionData data = data_of(op);
  const DequantizeResult reference = reference_dequantize(data);
  const DequantizeOutput right =
      kernel(op, rules_plan<DequantizeSimt>(op, sweep_gpu())).run_dequantize(data);
  const auto expect_found = [&](const DequantizeOutput& wrong, const std::string& words) {
    const DequantizeVerdict verdict = judge_dequantize(data, reference, wrong);
    EXPECT_FALSE(verdict.comparison.ok) << words;
    EXPECT_NE(verdict.why.find(words), std::string::npos) << verdict.why;
  };
  DequantizeOutput wrong = right;
  std::swap_ranges(wrong.keys.begin() + 30 * 64, wrong.keys.begin() + 31 * 64,
                   wrong.keys.begin() + 31 * 64);
  expect_found(wrong, "keys: element");
  wrong = right;
  wrong.values[5] ^= 0x4000;
  expect_found(wrong, "values: element 5");
  wrong = right;
  wrong.values[((1 * 2 + 1) * 90 + 41) * 64 + 63] = 0;
  expect_found(wrong, "values: token 41 of sequence 1, head 1 was written");
}

// A row of 80 channels takes 10 lanes, so two threads of a warp have none.
TEST(DecodeRaces, RawRowsAreCopiedOnceWhereLanesDoNotDivideTheBlock) {
  const auto backend = test_host({.check_races = true});
  KvDequantize op = dequantize_problem();
  op.shape.head_dim = 80;
  op.keys.hadamard = false;
  const Plan plan = DequantizeSimt{.threads = 32, .tokens_per_block = 64};
  Kernel kernel(*backend, op, plan, sweep_gpu());
  const AttentionData data = make_dequantize_data(op, {.seed = 52});
  const DequantizeVerdict verdict =
      judge_dequantize(data, reference_dequantize(data), kernel.run_dequantize(data));
  EXPECT_TRUE(verdict.comparison.ok) << verdict.why;
}

// Each fault changes one place of the kernel's text.
TEST_F(Decode, TheJudgeFindsWhatWrongKernelsWrite) {
  const KvDequantize op = dequantize_problem();
  const AttentionData data = data_of(op);
  const DequantizeResult reference = reference_dequantize(data);
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"(entries, book_, first_word,", "(entries, book_, rows,"},  // another token
      {"row(lane_group())", "row(0)"},                             // another token of rotated keys
      {"tensor.batch_stride + head * tensor.head_stride", "tensor.batch_stride"},  // another head
      {"head * head_stride(args)", "0 * head_stride(args)"},
      {"batch * batch_stride(args)", "0 * batch_stride(args)"},
      {"coded = most(first, tokens.sinks);", ""},  // a raw slot read as a code
      {"coded_end = end < tokens.recent_tokens ? end : tokens.recent_tokens;", ""},
      {"coded_end = end < tokens.recent_tokens ? end : tokens.recent_tokens;",
       "coded_end = first;"},
      {"kMaxSinks + token % kMaxRecentTokens", "kMaxSinks + (token + 1) % kMaxRecentTokens"},
      {"Rows::first_unit(work_.kv_head, 0)", "Rows::first_unit(0, 0)"},
      {"value[i] *= factors[i]", "value[i] /= factors[i]"},
      {"hadamard_steps(value[i]);", ""},
      {"sum[i] += book.scale(0, stage) *", "sum[i] +="},
      {"length < args_.tokens ? length : args_.tokens", "args_.tokens"},  // rows without a token
  };
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return judge_dequantize(data, reference, faulty.run_dequantize(data)).comparison.ok;
  });
}

}  // namespace
}  // namespace vqgen::test

// Heads of each size that kernels have, and groups of query heads up to 128: attention by every
// dataflow of its formats, what writes and reads the cache, and kernels with a fault, which the
// reference has to find.
#include <gtest/gtest.h>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "tests/klt_runs.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class HeadSizes : public SweepTest<> {
 protected:
  static void set_formats(auto& op, const std::string& keys, const std::string& values) {
    op.keys = find_format(keys, "test");
    op.values = find_format(values, "test");
    op.values.smooth = op.values.hadamard = false;
  }
  static AttentionDecode attention(int head_dim, int group, const std::string& keys,
                                   const std::string& values) {
    AttentionDecode op;
    op.shape = {
        .batch = 2, .query_heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .tokens = 150};
    set_formats(op, keys, values);
    return op;
  }
  template <class Op>
  static void expect_right(const Op& op, const Plan& plan, unsigned seed) {
    SweepCase each;
    validate(op, "heads");
    each.problem = op;
    each.plan = plan;
    const Verdict verdict = check(plan, op, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    each.input = {.seed = seed, .lengths = LengthPattern::ragged};
    EXPECT_EQ(failure_of(each, *sweep_backend(), sweep_gpu()), "") << op.shape.head_dim;
  }
};

// The recommended formats run in bytes, whatever the size.
TEST_F(HeadSizes, OfRecommendedFormatsAreServedByBytes) {
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    for (const std::string format : {"klt-2bit", "vecinfer-d4b8i8", "vecinfer-d8b8i8"}) {
      const bool klt = format == "klt-2bit";
      AttentionDecode op =
          attention(head_dim, 4, klt ? "klt-2bit-keys" : format, klt ? "klt-2bit-values" : format);
      op.shape.tokens = 8192;
      validate(op, "heads");
      const Plan plan = choose(op, find_gpu("h200"), {.chooser = Chooser::rules});
      EXPECT_EQ(dataflow_name(plan), "int8_mma") << head_dim << format;
    }
  }
}

TEST_F(HeadSizes, AreRightInBytesByPagesAndMasks) {
  int number = 0;
  for (const int head_dim : a_third({80, 96, 112, 160, 192, 256})) {
    for (const bool klt : {false, true}) {
      AttentionDecode op =
          attention(head_dim, klt ? 8 : 5, klt ? "klt-1.5bit-keys" : "vecinfer-d4b8i8",
                    klt ? "klt-1.5bit-values" : "vecinfer-d4b8i8");
      op.dtype = klt ? DType::bf16 : DType::f16;
      op.shape.recent_tokens = 21;
      op.shape.sinks = 3;
      op.shape.page_tokens = klt ? 16 : 0;
      op.shape.query_tokens = klt ? 2 : 1;
      op.shape.sliding_window = klt ? 77 : 0;
      op.shape.sink_logits = !klt;
      AttentionInt8Mma plan{
          .threads = 64, .splits = 2, .heads_per_block = klt ? 4 : 3, .pipeline_stages = 2};
      expect_right(op, plan, static_cast<unsigned>(70 + number++));
    }
  }
}

// Rows of codes that lanes get by ldmatrix are further apart where raw rows are long.
TEST_F(HeadSizes, OfPartsInMatricesAreRightBesideRawTokens) {
  AttentionDecode op = attention(192, 4, "vecinfer-d4b8i8", "vecinfer-d4b8i8");
  op.keys = klt_runs({{64, 4}, {128, 8}});
  op.values = klt_runs({{64, 4}, {128, 8}});
  op.shape.recent_tokens = 21;
  const AttentionInt8Mma plan{
      .threads = 64, .splits = 2, .heads_per_block = 4, .pipeline_stages = 2};
  expect_right(op, plan, 89);
}

TEST_F(HeadSizes, AreRightInElements) {
  for (const int head_dim : a_third({96, 160, 192, 256})) {
    AttentionDecode op = attention(head_dim, 4, "vecinfer-d4b8", "vecinfer-d4b8");
    op.shape.recent_tokens = 21;
    expect_right(op, rules_plan<AttentionMma>(op, sweep_gpu()), 90);
  }
}

TEST_F(HeadSizes, AreRightByLanes) {
  for (const int head_dim : a_third({80, 112, 160, 192})) {
    AttentionDecode op = attention(head_dim, 4, "vecinfer-d4b8", "vecinfer-d8b8");
    op.shape.recent_tokens = 21;
    expect_right(op, rules_plan<AttentionSimt>(op, sweep_gpu()), 91);
  }
}

TEST_F(HeadSizes, CachesAreWrittenAndReadInEachTransform) {
  for (const int head_dim : a_third({80, 96, 112, 160, 192, 256})) {
    for (const bool klt : {false, true}) {
      KvAppend append;
      append.shape = {.batch = 2,
                      .kv_heads = 2,
                      .head_dim = head_dim,
                      .tokens = 40,
                      .new_tokens = 3,
                      .recent_tokens = 4};
      set_formats(append, klt ? "klt-2bit-keys" : "vecinfer-d4b8i8",
                  klt ? "klt-2bit-values" : "vecinfer-d4b8i8");
      expect_right(append, rules_plan<AppendSimt>(append, sweep_gpu()), 92);
      KvDequantize dequantize;
      dequantize.shape = {
          .batch = 2, .kv_heads = 2, .head_dim = head_dim, .tokens = 40, .recent_tokens = 4};
      dequantize.keys = append.keys;
      dequantize.values = append.values;
      expect_right(dequantize, rules_plan<DequantizeSimt>(dequantize, sweep_gpu()), 93);
    }
  }
}

// Blocks have up to 8 heads of a group, or up to 16; the last block of a group may have fewer.
TEST_F(HeadSizes, GroupsOfUpTo128QueryHeads) {
  for (const int group : a_third({16, 24, 71, 128})) {
    AttentionDecode op = attention(64, group, "vecinfer-d4b8i8", "vecinfer-d4b8i8");
    op.shape.recent_tokens = 5;
    expect_right(op, rules_plan<AttentionInt8Mma>(op, sweep_gpu()), 94);
    AttentionMma elements = rules_plan<AttentionMma>(op, sweep_gpu());
    elements.threads = 64;
    elements.heads_per_block = 16;
    expect_right(op, elements, 95);
    expect_right(op, rules_plan<AttentionSimt>(op, sweep_gpu()), 96);
    set_formats(op, "klt-2bit-keys", "klt-2bit-values");
    expect_right(op, rules_plan<AttentionInt8Mma>(op, sweep_gpu()), 97);
  }
}

TEST_F(HeadSizes, FaultsAreFound) {
  AttentionDecode op = attention(80, 4, "vecinfer-d4b8i8", "vecinfer-d4b8i8");
  op.shape.recent_tokens = 40;
  validate(op, "heads");
  const AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok);
  const AttentionData data =
      make_attention_data(op, {.seed = 98, .lengths = LengthPattern::ragged});
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {
      {"channel >= kConfig.head_dim) return 0.0f;", "channel >= kConfig.head_dim) return 1.0f;"},
      {"part.first_byte = first;", "part.first_byte = 0;"},
      {"part.first_channel = first * size;", "part.first_channel = 0;"},
      {"kPlaces % 8 == 0 ? row : row % 4;", "row;"},
      {"piece >= Rows<kValues>::kPieces) {", "piece >= Rows<kValues>::kPieces - 1) {"},
      {"part * kWords % 4,", "0,"},
      {"sums[j] += signed_by(signs[j], column, other);", "sums[j] += other;"},
      {"if (q == 9) return i % 3 == j % 3 || i / 3 == j / 3;",
       "if (q == 9) return i % 3 == j % 3;"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
  KvDequantize dense;
  dense.shape = {.batch = 2, .kv_heads = 2, .head_dim = 80, .tokens = 40};
  dense.keys = op.keys;
  dense.values = op.values;
  const AttentionData cache = make_dequantize_data(dense, {.seed = 99});
  const DequantizeResult rows = reference_dequantize(cache);
  const Fault of_rows[] = {
      {"signed_by(signs[i], column + j / (8 / kOfOctet), other);", "other;"},
      {"column / kOfOctet * kSharing + own % kSharing;", "column / kOfOctet + own % kSharing + 1;"},
      {"kFormat.hadamard ? octet_lanes(kHeadDim) : row_lanes(kRowChannels);",
       "row_lanes(kRowChannels);"}};
  expect_faults_found(dense, DequantizeSimt{}, of_rows, [&](Kernel& faulty) {
    return judge_dequantize(cache, rows, faulty.run_dequantize(cache)).comparison.ok;
  });
}

}  // namespace
}  // namespace vqgen::test

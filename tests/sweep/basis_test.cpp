// Caches in a basis of their own (vq/layout/basis.h): centred and rotated rows under every dataflow
// of attention, laws, and kernels with a fault, which the reference has to find.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_append/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/klt_runs.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr int kHeadDim = 64;

template <class Op>
Op problem_of(std::uint64_t seed = 1) {
  Op op;
  op.dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 5, .scope = Scope::tensor};
  op.keys.center = op.keys.klt = op.values.center = op.values.klt = true;
  op.shape.batch = 3;
  op.shape.kv_heads = 2;
  op.shape.head_dim = kHeadDim;
  op.shape.tokens = 90;
  op.shape.recent_tokens = 12;
  op.shape.sinks = 2;
  if constexpr (std::is_same_v<Op, AttentionDecode>) {
    op.shape.query_heads = 12;
    op.shape.query_tokens = seed % 3 == 0 ? 1 : 3;
  }
  if constexpr (std::is_same_v<Op, KvAppend>) op.shape.new_tokens = 5;
  validate(op, "basis");
  return op;
}

class Bases : public SweepTest<> {
 protected:
  static AttentionOutput run(const AttentionDecode& op, const AttentionData& data) {
    const Plan plan = choose(op, sweep_gpu(), {.chooser = Chooser::rules});
    return Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  }
};

template <class P>
class BasesOf : public Bases {};
using Dataflows =
    testing::Types<AttentionSimt, AttentionLut, AttentionChannels, AttentionMma, AttentionInt8Mma>;
TYPED_TEST_SUITE(BasesOf, Dataflows);

TYPED_TEST(BasesOf, IsRight) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    auto op = problem_of<AttentionDecode>(seed);
    if constexpr (std::is_same_v<TypeParam, AttentionInt8Mma>) {
      for (VqFormat* format : {&op.keys, &op.values}) {
        format->index_bits = 8;
        format->scope = Scope::head;
        format->entry_type = EntryType::int8;
        format->stage_scales = true;
        format->vector_size = 4;
      }
      op.shape.query_tokens = 1;
    }
    SweepCase each;
    each.problem = op;
    each.plan = rules_plan<TypeParam>(op, sweep_gpu());
    ASSERT_TRUE(check(each.plan, op, sweep_gpu()).ok) << check(each.plan, op, sweep_gpu()).reason;
    each.input = {.seed = seed, .lengths = LengthPattern::ragged};
    each.input.fresh = seed == 2;
    EXPECT_EQ(failure_of(each, *sweep_backend(seed), sweep_gpu()), "") << seed;
  }
}

// The identity moves nothing, and a mean of zeros is none.
TEST_F(Bases, TheIdentityChangesNoBit) {
  const auto op = problem_of<AttentionDecode>();
  AttentionData data = make_attention_data(op, {.seed = 11, .lengths = LengthPattern::ragged});
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    std::fill(tensor->mean.begin(), tensor->mean.end(), 0.0f);
    std::fill(tensor->rotation.begin(), tensor->rotation.end(), 0.0f);
    for (std::int64_t row = 0; row < tensor->heads * kHeadDim; ++row) {
      tensor->rotation[static_cast<std::size_t>(row * kHeadDim + row % kHeadDim)] = 1.0f;
    }
  }
  AttentionDecode plain = op;
  AttentionData without = data;
  for (VqFormat* format : {&plain.keys, &plain.values}) format->center = format->klt = false;
  without.keys.format = plain.keys;
  without.values.format = plain.values;
  for (QuantizedTensor* tensor : {&without.keys, &without.values}) {
    tensor->mean.clear();
    tensor->rotation.clear();
  }
  expect_same_bits(run(op, data), run(plain, without));
}

// A rotation that is a permutation: results are those of permuted queries, put back.
TEST_F(Bases, APermutationOfChannelsChangesNoBit) {
  auto op = problem_of<AttentionDecode>(3);
  op.values.klt = false;
  op.keys.center = op.values.center = false;
  AttentionData data = make_attention_data(op, {.seed = 12});
  const auto to = [](std::int64_t channel) { return (channel * 5 + 3) % kHeadDim; };
  std::fill(data.keys.rotation.begin(), data.keys.rotation.end(), 0.0f);
  for (std::int64_t row = 0; row < data.keys.heads * kHeadDim; ++row) {
    data.keys.rotation[static_cast<std::size_t>(row * kHeadDim + to(row % kHeadDim))] = 1.0f;
  }
  AttentionDecode plain = op;
  plain.keys.klt = false;
  AttentionData permuted = data;
  permuted.keys.format = plain.keys;
  permuted.keys.rotation.clear();
  for (std::size_t i = 0; i < data.queries.size(); ++i) {
    const auto channel = static_cast<std::int64_t>(i % kHeadDim);
    permuted.queries[i - i % kHeadDim + static_cast<std::size_t>(to(channel))] = data.queries[i];
  }
  expect_same_bits(run(op, data), run(plain, permuted));
}

// A constant on all keys moves the log-sum-exp by its product with the query, and nothing else.
TEST_F(Bases, TheMeanOfKeysMovesTheLogSumExpAlone) {
  const auto op = problem_of<AttentionDecode>(3);
  AttentionData data = make_attention_data(op, {.seed = 13, .lengths = LengthPattern::ragged});
  const AttentionOutput with = run(op, data);
  const std::vector<float> mean = data.keys.mean;
  std::fill(data.keys.mean.begin(), data.keys.mean.end(), 0.0f);
  const AttentionOutput without = run(op, data);
  EXPECT_EQ(with.out, without.out);
  const std::int64_t group = op.shape.query_heads / op.shape.kv_heads;
  for (std::size_t i = 0; i < with.lse.size(); ++i) {
    const std::int64_t head = static_cast<std::int64_t>(i) % op.shape.query_heads / group;
    double shift = 0;
    for (std::int64_t c = 0; c < kHeadDim; ++c) {
      shift += static_cast<double>(mean[static_cast<std::size_t>(head * kHeadDim + c)]) *
               element_value(op.dtype, data.queries[i * kHeadDim + static_cast<std::size_t>(c)]);
    }
    shift *= static_cast<double>(softmax_scale(op));
    if (std::isinf(without.lse[i])) {
      EXPECT_EQ(with.lse[i], without.lse[i]) << i;
    } else {
      EXPECT_NEAR(with.lse[i], without.lse[i] + shift, 1e-4 * (1 + std::abs(shift))) << i;
    }
  }
}

// What an append keeps raw and encodes, kv_dequantize gives back: raw rows to rounding.
TEST_F(Bases, RawRowsComeBack) {
  auto append = problem_of<KvAppend>();
  append.shape.recent_tokens = 16;
  append.shape.sinks = 0;
  AppendData data = make_append_data(append, {.seed = 14});
  data.positions.assign(3, 0);
  data.counts.clear();
  const AppendResult cache =
      Kernel(*sweep_backend(), append, rules_plan(AppendSimt{}, append, sweep_gpu()), sweep_gpu())
          .run(data);
  auto op = problem_of<KvDequantize>();
  op.shape.recent_tokens = 16;
  op.shape.sinks = 0;
  AttentionData read = make_dequantize_data(op, {.seed = 14});
  read.keys = data.keys;
  read.values = data.values;
  read.raw_keys = cache.raw_keys;
  read.raw_values = cache.raw_values;
  read.lengths.assign(3, append.shape.new_tokens);
  read.recent_counts.assign(3, append.shape.new_tokens);
  const DequantizeOutput dense =
      Kernel(*sweep_backend(), op, choose(op, sweep_gpu()), sweep_gpu()).run_dequantize(read);
  const int heads = append.shape.kv_heads;
  for (std::int64_t row = 0; row < 3 * append.shape.new_tokens * heads; ++row) {
    const std::int64_t head = row % heads;
    const std::int64_t token = row / heads % append.shape.new_tokens;
    const std::int64_t sequence = row / heads / append.shape.new_tokens;
    double off = 0, all = 0;
    for (std::int64_t c = 0; c < kHeadDim; ++c) {
      const double given =
          element_value(op.dtype, data.new_values[static_cast<std::size_t>(row * kHeadDim + c)]);
      const std::int64_t at = ((sequence * heads + head) * op.shape.tokens + token) * kHeadDim + c;
      const double back = element_value(op.dtype, dense.values[static_cast<std::size_t>(at)]);
      off += (back - given) * (back - given);
      all += given * given + 1;
    }
    EXPECT_LE(std::sqrt(off / all), 2e-3) << row;
  }
}

// Heads of a sequence fill a tile and begin another; a block has several sequences.
TEST_F(Bases, TilesOfHeadsAndOfSequencesAreRight) {
  for (const bool sequences : {false, true}) {
    auto op = problem_of<AttentionDecode>(sequences ? 3 : 1);
    op.shape.query_heads = 36;
    if (sequences) {
      op.shape.batch = 7;
      op.shape.kv_heads = 64;
      op.shape.query_heads = 192;
      op.shape.tokens = 20;
    }
    const AttentionData data =
        make_attention_data(op, {.seed = 20, .lengths = LengthPattern::ragged});
    EXPECT_TRUE(is_right(reference_of(op, data), run(op, data), op.dtype)) << sequences;
  }
}

// A block has new rows of several query tokens, in two tiles.
TEST_F(Bases, NewRowsOfManyQueryTokensAreRight) {
  auto op = problem_of<AttentionDecode>(1);
  op.shape.batch = 8;
  op.shape.kv_heads = op.shape.query_heads = 64;
  op.shape.tokens = 20;
  op.shape.query_tokens = 4;
  validate(op, "basis");
  SweepCase each;
  each.problem = op;
  each.plan = rules_plan<AttentionSimt>(op, sweep_gpu());
  each.input = {.seed = 22, .lengths = LengthPattern::ragged, .fresh = true};
  EXPECT_EQ(failure_of(each, *sweep_backend(), sweep_gpu()), "");
}

TEST_F(Bases, FaultsOfAttentionAreFound) {
  auto op = problem_of<AttentionDecode>(2);
  op.shape.query_heads = 36;
  const AttentionData data =
      make_attention_data(op, {.seed = 15, .lengths = LengthPattern::ragged, .fresh = true});
  const AttentionResult reference = reference_of(op, data);
  const Plan plan = rules_plan(AttentionSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"log_sum == -infinity() ? log_sum : log_sum + shift", "log_sum"},
      {"args_.key_mean + i64{block_y()} * kQueryDim", "args_.key_mean"},
      {"rows() + lane() % 16 * kStride", "rows() + lane() % 8 * kStride"},
      {"if (kBack && basis_.mean) value +=", "if (false) value +="},
      {"const i64 head = i64{kv_head} * kHeadDim;", "const i64 head = 0;"},
      {"(values ? args.value_mean : args.key_mean)", "args.key_mean"},
      {"place_of(to + lane() % 8, from)", "place_of(to, from)"},
      {"place_of(from + lane() % 8, to)", "place_of(from, to)"},
      {"lane() / 16 * kLow", "0"},
      {"lane() / 8 % 2 * 8", "0"},
      {"return factor - to_float<kElement>(from_float<kElement>(factor));", "return factor;"},
      {"of_block % kOfToken * kBasisHeads", "0"},
      {"batch(of_all / kTokens), number(of_all % kTokens)", "batch(of_all / kTokens), number(0)"},
      {"values ? args.given_values : args.given_keys", "args.given_keys"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

// Rotations of more channels than registers hold are read where they are used; of as many as they
// hold in two pieces.
TEST_F(Bases, FaultsOfLargeRotationsAreFound) {
  const auto find = [](int head_dim, std::span<const Fault> faults) {
    auto op = problem_of<AttentionDecode>(3);
    op.shape.head_dim = head_dim;
    validate(op, "basis");
    const AttentionData data = make_attention_data(op, {.seed = 21});
    const AttentionResult reference = reference_of(op, data);
    expect_faults_found(
        op, rules_plan(AttentionSimt{}, op, sweep_gpu()), faults,
        [&](Kernel& faulty) { return is_right(reference, faulty.run(data), op.dtype); });
  };
  const char* const factor = "kBack ? to * kHeadDim + from : from * kHeadDim + to";
  const Fault of_reads[] = {{factor, "to * kHeadDim + from"}, {factor, "from * kHeadDim + to"}};
  find(256, of_reads);
  const Fault of_pieces[] = {{"elements_[step] = {{", "elements_[step % kStepsOfPiece] = {{"}};
  find(128, of_pieces);
}

// A sequence without tokens has zeros, and no mean.
TEST_F(Bases, AMeanWhereNothingIsSeenIsFound) {
  const auto op = problem_of<AttentionDecode>(3);
  const AttentionData data =
      make_attention_data(op, {.seed = 18, .lengths = LengthPattern::ragged});
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {{"load_shared(Tiles::log_sums() + row) != -infinity()",
                           "load_shared(Tiles::places() + row) >= 0"}};
  expect_faults_found(
      op, rules_plan(AttentionSimt{}, op, sweep_gpu()), faults,
      [&](Kernel& faulty) { return is_right(reference, faulty.run(data), op.dtype); });
}

TEST_F(Bases, FaultsOfAppendsAreFound) {
  const auto op = problem_of<KvAppend>();
  const AppendData data = make_append_data(op, {.seed = 16});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  const Fault faults[] = {{"* kConfig.kv_heads + block_y()) * kDim", "* kConfig.kv_heads) * kDim"},
                          {"kCentered && basis_.mean", "false"},
                          {"value - to_float<kElement>(bits[i])", "value"},
                          {"is_of_values(kConfig, kOf, block_x() % kOperands)", "false"}};
  expect_faults_found(op, plan, faults,
                      [&](Kernel& faulty) { return judge_append(data, faulty.run(data)).ok; });
}

TEST_F(Bases, FaultsOfDenseRowsAreFound) {
  const auto op = problem_of<KvDequantize>();
  const AttentionData data =
      make_dequantize_data(op, {.seed = 17, .lengths = LengthPattern::ragged});
  const DequantizeResult reference = reference_dequantize(data);
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"(length < args.tokens ? length : args.tokens) - first;", "args.tokens - first;"},
      {"block_x() / kOperands * kBasisTile", "0"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    const DequantizeVerdict verdict =
        judge_dequantize(data, reference, faulty.run_dequantize(data));
    return verdict.comparison.ok;
  });
}

}  // namespace
}  // namespace vqgen::test

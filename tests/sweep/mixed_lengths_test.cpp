// Batches of short and long sequences, whose tokens are balanced over the blocks by length
// (schedule), in dataflows mma and int8_mma.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "generator/generate.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/random.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr int kTokens = 600;

AttentionDecode mixed_problem(int batch, bool bytes = false) {
  AttentionDecode op;
  op.shape = {.batch = batch,
              .query_heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = kTokens,
              .recent_tokens = 10,
              .sinks = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 7, .scope = Scope::head};
  if (bytes) {
    op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    with_integers(op.keys, true);
    with_integers(op.values, true);
  }
  return op;
}

void take_lengths(AttentionData& data, const std::vector<int>& lengths) {
  for (std::size_t b = 0; b < data.lengths.size(); ++b) {
    data.lengths[b] = lengths[b];
    if (!data.recent_counts.empty())
      data.recent_counts[b] = std::min(data.recent_counts[b], lengths[b]);
    if (!data.sinks.empty()) data.sinks[b] = std::min(data.sinks[b], lengths[b]);
  }
}

// Mostly short lengths, one 0, one 1, and each eleventh nearly the maximum.
std::vector<int> mixed_lengths(int batch) {
  std::vector<int> lengths;
  for (int b = 0; b < batch; ++b) {
    lengths.push_back(b % 11 == 2 ? kTokens - 20 : b == 1 ? 0 : b == 3 ? 1 : 20 + b % 7);
  }
  return lengths;
}

AttentionMma sharing_plan(const AttentionDecode& op, int splits,
                          Combine combine = Combine::last_block) {
  auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
  plan.threads = std::min(plan.threads, 128);  // a fiber each: more take time and show nothing new
  plan.splits = splits;
  plan.schedule = Schedule::balanced;
  plan.combine = combine;
  return plan;
}

AttentionInt8Mma bytes_plan(const AttentionDecode& op, int splits,
                            Combine combine = Combine::last_block) {
  AttentionInt8Mma plan{.threads = 64, .splits = splits};
  plan.schedule = Schedule::balanced;
  plan.combine = combine;
  plan.heads_per_block = op.group() * std::min(op.shape.query_tokens, 8 / op.group());
  plan.pipeline_stages = 2;
  return plan;
}
Plan plan_of(const AttentionDecode& op, int splits, Combine combine = Combine::last_block) {
  if (op.keys.entry_type == EntryType::int8) return bytes_plan(op, splits, combine);
  return sharing_plan(op, splits, combine);
}

class MixedLengths : public SweepTest<> {
 protected:
  static Kernel kernel(const AttentionDecode& op, int splits,
                       Combine combine = Combine::last_block) {
    return Kernel(*sweep_backend(), op, plan_of(op, splits, combine), sweep_gpu());
  }
};
// And whether keys and values are of int8 entries.
class MixedLengthsOf : public MixedLengths, public testing::WithParamInterface<bool> {};

TEST_P(MixedLengthsOf, GiveWhatTheReferenceGives) {
  for (const int batch : a_third({2, 5, 40, 70})) {
    const AttentionDecode op = mixed_problem(batch, GetParam());
    AttentionData data = make_attention_data(op, {.seed = 51});
    std::vector<int> lengths = mixed_lengths(batch);
    std::reverse(lengths.begin(), lengths.begin() + batch % 5);
    take_lengths(data, lengths);
    for (const int splits : {2, 5}) {
      SCOPED_TRACE(testing::Message() << batch << " sequences, " << splits << " splits");
      const AttentionOutput output = kernel(op, splits).run(data);
      EXPECT_TRUE(is_right(reference_of(op, data), output, op.dtype));
      expect_same_bits(output, kernel(op, splits, Combine::kernel).run(data));
    }
  }
}

// Blocks with one round or none: there are more blocks than rounds.
TEST_P(MixedLengthsOf, OneSequenceMayHaveNearlyAllBlocks) {
  const AttentionDecode op = mixed_problem(12, GetParam());
  AttentionData data = make_attention_data(op, {.seed = 52});
  std::vector<int> lengths(12, 0);
  for (const int splits : {4, 40, 300}) {
    Kernel attention = kernel(op, splits);
    lengths[7] = kTokens;
    take_lengths(data, lengths);
    EXPECT_TRUE(is_right(reference_of(op, data), attention.run(data), op.dtype));
    lengths[7] = 0;
    take_lengths(data, lengths);
    EXPECT_TRUE(is_right(reference_of(op, data), attention.run(data), op.dtype));
  }
}

// Each run draws new lengths and plans; lengths often end with a tile or a block's round.
TEST_P(MixedLengthsOf, OfLengthsDrawnAnew) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  const int rounds = sweep_third() == 0 ? 10 : 4;
  for (int round = 0; round < rounds; ++round) {
    const int batch = 2 + static_cast<int>(random.below(round % 2 == 0 ? 6 : 80));
    AttentionDecode op = mixed_problem(batch, GetParam());
    if (random.chance(0.3)) op.shape.recent_tokens = op.shape.sinks = 0;
    if (random.chance(0.4)) op.shape.page_tokens = 16;
    if (random.chance(0.4)) op.shape.query_tokens = 2 + static_cast<int>(random.below(3));
    HardInput input{.seed = random.bits()};
    input.counts = random.chance(0.5) ? LengthPattern::ragged : LengthPattern::full;
    input.fresh = op.shape.query_tokens > 1 && random.chance(0.5);
    Plan plan = plan_of(op, 2 + static_cast<int>(random.below(random.chance(0.5) ? 6 : 60)),
                        random.chance(0.7) ? Combine::last_block : Combine::kernel);
    const int threads = 32 << random.below(3);
    const int step_tokens = 8 << random.below(3);
    change_own(
        plan, [&](auto& own) requires requires { own.threads; } { own.threads = threads; });
    change_own(plan, [&](AttentionMma& own) { own.step_tokens = step_tokens; });
    const int step = GetParam() ? vq::kBytesStep : step_tokens;
    const int turn = threads / 32 * step;
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << op.shape.batch
                                    << " sequences, plan " << to_json(plan).dump());
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    Kernel attention(*sweep_backend(), op, plan, sweep_gpu());
    for (int draw = 0; draw < 3; ++draw) {
      AttentionData data = make_attention_data(op, input);
      const auto most =
          static_cast<int>(*std::min_element(data.lengths.begin(), data.lengths.end()));
      const int all = static_cast<int>(random.below(most + 1));
      const bool equal = random.chance(0.15);
      std::vector<int> lengths;
      for (int b = 0; b < op.shape.batch; ++b) {
        const int edge = random.chance(0.5) ? step : turn;
        const int near = static_cast<int>(random.below(most / edge + 1)) * edge;
        const int drawn[] = {0, 1, near, near - 1, near + 1, static_cast<int>(random.below(most))};
        lengths.push_back(equal ? all : std::clamp(drawn[random.below(6)], 0, most));
      }
      if (random.chance(0.3))
        lengths[static_cast<std::size_t>(random.below(op.shape.batch))] = most;
      take_lengths(data, lengths);
      EXPECT_TRUE(is_right(reference_of(op, data), attention.run(data), op.dtype))
          << "draw " << draw;
    }
  }
}

TEST_P(MixedLengthsOf, OfSeveralQueryTokens) {
  AttentionDecode op = mixed_problem(9, GetParam());
  op.shape.query_tokens = 3;
  for (const bool fresh : {false, true}) {
    AttentionData data =
        make_attention_data(op, {.seed = 54, .counts = LengthPattern::ragged, .fresh = fresh});
    take_lengths(data, mixed_lengths(9));
    for (const Combine combine : {Combine::last_block, Combine::kernel}) {
      SCOPED_TRACE(testing::Message() << fresh);
      EXPECT_TRUE(is_right(reference_of(op, data), kernel(op, 3, combine).run(data), op.dtype));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, MixedLengthsOf, testing::Bool(), [](const auto& each) {
  return each.param ? std::string("int8_mma") : std::string("mma");
});

// Faults for blocks with pieces of several sequences must be found.
TEST_F(MixedLengths, FindsFaults) {
  const AttentionDecode op = mixed_problem(9);
  const Plan plan = sharing_plan(op, 5, Combine::kernel);
  AttentionData data = make_attention_data(op, {.seed = 56});
  take_lengths(data, mixed_lengths(9));
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {
      {"slot_ + batch_", "slot_"},                          // two pieces as one
      {"balanced(c) ? at.query : 0", "0"},                  // overwritten codebooks
      {"softmax_ = Softmax();", ""},                        // sums of the previous sequence
      {"turns_ = turns_of(args, ++batch_)", "++batch_"},    // the previous length
      {"before + 1 + ceil_div(turns_ - end, share_)", "1"}  // a piece as the whole
  };
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}
TEST_F(MixedLengths, FindsFaultsByBytes) {
  AttentionDecode op = mixed_problem(9, true);
  op.shape.query_tokens = 3;
  AttentionData data = make_attention_data(op, {.seed = 57, .fresh = true});
  take_lengths(data, mixed_lengths(9));
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {
      {"softmax_ = Softmax();", ""},                           // sums of the piece before
      {"rounds_ = Rounds();", ""},                             // the round that it ended with
      {"balanced(c) ? at.rounds : at.entries", "at.entries"},  // overwritten codebooks
      {"tokens.split + tokens.splits * number", "tokens.splits * number"},  // raw tokens twice
      {"kBalanced ? tokens.batch : block_z()", "block_z()"},                // another sequence's
      {"token >= tokens.cached", "false"},     // tokens of the ring for fresh
      {"i64{tokens.fresh} + token", "token"},  // rows of the first sequence
      {"token < ends_.codes(quad)", "true"},   // codes of raw tokens
      {"token >= ends_.codes(quad)", "true"},  // tokens as codes and raw
      {"counts && raw && token < ends_.seen(quad)", "counts && raw"},  // tokens behind
  };
  const auto right = [&](Kernel& kernel) {
    try {
      return bool(is_right(reference, kernel.run(data), op.dtype));
    } catch (const Error&) {  // of an access outside of all arrays
      return false;
    }
  };
  Kernel whole = kernel(op, 5, Combine::kernel);
  EXPECT_TRUE(right(whole));
  expect_faults_found(op, bytes_plan(op, 5, Combine::kernel), faults, right);
}

}  // namespace
}  // namespace vqgen::test

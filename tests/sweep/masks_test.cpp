// What a query token sees (sliding windows, chunks), bounded scores and sink logits, in each
// dataflow of attention_decode that has them: laws, seeded faults, and how many splits share a
// window.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "heuristics/choose.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct MaskCase {
  const char* name;
  Plan dataflow;
  int query_tokens;
};

std::vector<MaskCase> mask_cases() {
  return {{"simt", AttentionSimt{}, 1},
          {"lut", AttentionLut{}, 1},
          {"channels", AttentionChannels{}, 3},
          {"mma", AttentionMma{}, 1},
          {"mma, several", AttentionMma{}, 3},
          {"int8_mma", AttentionInt8Mma{}, 1},
          {"int8_mma, several", AttentionInt8Mma{}, 3}};
}

class Masks : public SweepTest<testing::TestWithParam<MaskCase>> {
 protected:
  // The third of this dataflow, so that each run has all kinds of masks.
  static std::uint64_t third() {
    return third_after(GetParam().dataflow.index() + (GetParam().query_tokens > 1 ? 1 : 0));
  }
  static AttentionDecode problem() {
    AttentionDecode op;
    op.shape = {.batch = 3,
                .query_heads = 8,
                .kv_heads = 2,
                .head_dim = 128,
                .tokens = 300,
                .recent_tokens = 30,
                .sinks = 3,
                .query_tokens = GetParam().query_tokens};
    op.keys = find_format("vecinfer-d4b8i8", "test");
    op.values = for_values(op.keys);
    return op;
  }
  static Plan plan(const AttentionDecode& op, int splits) {
    Plan plan = narrow_plan(GetParam().dataflow, op, sweep_gpu(), splits);
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return plan;
  }
  static AttentionData data(const AttentionDecode& op, std::uint64_t seed) {
    return make_attention_data(op, {.seed = seed, .lengths = LengthPattern::ragged});
  }
  static Kernel kernel(const AttentionDecode& op, int splits) {
    return Kernel(*sweep_backend(), op, plan(op, splits), sweep_gpu());
  }
};

// Neither codes nor full-precision rows that no query token sees are read, whatever they hold.
TEST_P(Masks, WhatIsNotSeenDoesNotChangeABit) {
  for (const auto& [chunks, splits] :
       a_third({std::pair{false, 1}, {true, 3}, {true, 1}, {false, 3}}, third())) {
    AttentionDecode op = problem();
    (chunks ? op.shape.attention_chunk : op.shape.sliding_window) = 70;
    AttentionData each = data(op, 51);
    each.lengths = {299, 150, 71};
    Kernel attention = kernel(op, splits);
    const AttentionOutput before = attention.run(each);
    AttentionData other = each;
    for (std::int64_t b = 0; b < each.batch; ++b) {
      const std::int64_t seen = each.seen_by(b, each.query_rows(b).first);
      for (QuantizedTensor* tensor : {&other.keys, &other.values}) {
        for (std::int64_t head = 0; head < tensor->heads; ++head) {
          const auto row =
              tensor->codes.begin() + (b * tensor->heads + head) * tensor->rows * tensor->row_words;
          std::for_each(row, row + each.first_seen(seen) * tensor->row_words,
                        [](std::uint32_t& word) { word = ~word; });
        }
      }
    }
    expect_same_bits(before, attention.run(other));
  }
}

// A window as long as the sequence, a chunk likewise, a logit of -inf: as without.
TEST_P(Masks, ThoseThatHideNothingAreAsNone) {
  AttentionDecode op = problem();
  AttentionData each = data(op, 52);
  const AttentionOutput plain = kernel(op, 2).run(each);
  for (const int kind : a_third({0, 1, 2}, third())) {
    SCOPED_TRACE(kind);
    AttentionDecode hides = op;
    if (kind == 0) hides.shape.sliding_window = 300;
    if (kind == 1) hides.shape.attention_chunk = 300;
    if (kind == 2) {
      hides.shape.sink_logits = true;
      each.sink_logits.assign(8, -std::numeric_limits<float>::infinity());
    }
    expect_same_bits(plain, kernel(hides, 2).run(each));
  }
}

TEST_P(Masks, FaultsAreFound) {
  AttentionDecode op = problem();
  std::vector<std::pair<AttentionDecode, Fault>> all;
  const auto find = [&](std::initializer_list<Fault> faults) {
    for (const Fault& fault : faults) all.emplace_back(op, fault);
  };
  op.shape.sliding_window = 70;
  find({{"seen > kWindow ? seen - kWindow : 0", "seen > kWindow ? seen - kWindow + 1 : 0"},
        {"seen > kWindow ? seen - kWindow : 0", "0"},
        {"common_start = first_seen<Plan>(length);", "common_start = 0;"}});
  op.shape.sliding_window = 0;
  op.shape.attention_chunk = 70;
  find({{"(seen - 1) / kChunk * kChunk", "seen / kChunk * kChunk"}});
  op.shape.attention_chunk = 0;
  op.shape.logit_softcap = 3;
  const bool by_mma = std::holds_alternative<AttentionMma>(GetParam().dataflow);
  find({{"maximum - 0.5f * args.softcap_span", "maximum - args.softcap_span"}});
  if (!by_mma) find({{"score * args.softcap_rate", "score"}});
  if (by_mma || std::holds_alternative<AttentionInt8Mma>(GetParam().dataflow)) {
    find({{"scale[quad] * args.softcap_rate", "scale[quad]"},
          {"softcaps ? args.softcap_span : scale[quad]", "softcaps ? 1.0f : scale[quad]"}});
  }
  op.shape.logit_softcap = 0;
  op.shape.sink_logits = true;
  find({{"args.sink_logits + row % Plan::config().query_heads", "args.sink_logits"},
        {"fused(sum, weight, sink == highest ? 1.0f : exp2_approx(sink - highest))",
         "fused(sum, weight, 1.0f)"},
        {"sum == 0.0f || sink > maximum ? sink : maximum", "sink"}});
  for (const auto& [of, fault] : a_third(all, third())) {
    AttentionData each = data(of, 53);
    each.lengths = {280, 140, 71};  // two end with a chunk
    if (of.shape.sink_logits) each.sink_logits = {0, 200, -200, 2, 4, 1, 3, 5};
    const AttentionResult reference = reference_of(of, each);
    expect_faults_found(of, plan(of, 2), std::span(&fault, 1), [&](Kernel& faulty) {
      return is_right(reference, faulty.run(each), of.dtype);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dataflows, Masks, testing::ValuesIn(mask_cases()),
                         [](const auto& each) { return test_name(each.param.name); });

class MasksOfBases : public SweepTest<> {};

// The keys' mean moves scores beside the sink logits: in the kernel that takes results out of the
// basis, and in blocks that do so themselves.
TEST_F(MasksOfBases, SinkLogitsAreBesideWholeScores) {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .tokens = 300};
  op.shape.sink_logits = true;
  op.keys = op.values = find_format("klt-2bit-keys", "test");
  for (const bool values : {false, true}) {
    if (!values) op.values = for_values(find_format("vecinfer-d4b8i8", "test"));
    for (const int fused : {0, 1}) {
      AttentionInt8Mma plan{.threads = 96, .splits = 2, .heads_per_block = 4};
      plan.fused_basis = fused;
      const Verdict verdict = check(plan, op, sweep_gpu());
      ASSERT_TRUE(verdict.ok) << verdict.reason;
      const AttentionData data =
          make_attention_data(op, {.seed = 54, .lengths = LengthPattern::ragged});
      const AttentionResult reference = reference_of(op, data);
      EXPECT_TRUE(
          is_right(reference, Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data), op.dtype));
      if (fused == 1) continue;
      const Fault faults[] = {
          {"sink - shift * args_.softmax_scale", "sink"},
          {"args_.sink_logits + heads.first + h", "args_.sink_logits + h"},
          {"log_sum = log_add(log_sum, load_shared(sinks() + row));", ";"},
          {"return 1.0f / (1.0f + exp2_approx(above * kLog2E));", "return 1.0f;"}};
      expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
        return is_right(reference, faulty.run(data), op.dtype);
      });
    }
  }
}

// Blocks that share all sequences skip what is not seen.
TEST_F(MasksOfBases, BalancedBlocksShareWhatIsSeen) {
  for (const int query_tokens : {1, 3}) {
    AttentionDecode op;
    op.shape = {.batch = 3, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .tokens = 2000};
    op.shape.recent_tokens = 40;
    op.shape.sliding_window = 600;
    op.shape.query_tokens = query_tokens;
    op.keys = find_format("vecinfer-d4b8i8", "test");
    op.values = for_values(op.keys);
    AttentionInt8Mma bytes{.threads = 64, .splits = 3, .heads_per_block = 4};
    bytes.schedule = Schedule::balanced;
    AttentionMma elements{.threads = 64, .splits = 3, .heads_per_block = 4};
    elements.schedule = Schedule::balanced;
    const AttentionData data =
        make_attention_data(op, {.seed = 55, .lengths = LengthPattern::ragged});
    const AttentionResult reference = reference_of(op, data);
    for (const Plan& plan : {Plan(bytes), Plan(elements)}) {
      const Verdict verdict = check(plan, op, sweep_gpu());
      ASSERT_TRUE(verdict.ok) << verdict.reason;
      EXPECT_TRUE(
          is_right(reference, Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data), op.dtype));
      const Fault faults[] = {
          {"i64{piece.skipped} + piece.begin", "i64{0} + piece.begin"},
          {"fresh ? length + 1 : length - (kQueryTokens - 1)", "length + kTurn"}};
      expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
        return is_right(reference, faulty.run(data), op.dtype);
      });
    }
  }
}

// Splits share what is seen: a window of a long cache has the plan of a cache as long as it.
TEST(MaskedPlans, AreThoseOfTheWindow) {
  const GpuSpec gpu = find_gpu("h200");
  AttentionDecode op;
  op.shape = {.batch = 8, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 131072};
  op.keys = find_format("vecinfer-d4b8i8", "test");
  op.values = for_values(op.keys);
  AttentionDecode brief = op;
  brief.shape.tokens = op.shape.sliding_window = 4096;
  const auto by_rules = [&](const AttentionDecode& each) {
    return choose(each, gpu, {.chooser = Chooser::rules});
  };
  EXPECT_EQ(by_rules(op), by_rules(brief));
  EXPECT_NE(by_rules(op), by_rules([&] {
              AttentionDecode whole = op;
              whole.shape.sliding_window = 0;
              return whole;
            }()));
}

}  // namespace
}  // namespace vqgen::test

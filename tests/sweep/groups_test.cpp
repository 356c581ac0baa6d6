// Caches whose tokens share scales, such as KIVI's keys: groups are encoded whole once they are
// full; until then their tokens are read raw.
#include <gtest/gtest.h>

#include <cmath>

#include "quantizer/encode.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/prompts.h"

namespace vqgen::test {
namespace {

constexpr int kTogether = 32;
constexpr std::int64_t kTokenElements = 2 * 64;  // elements of a token, all heads

// Keys of KIVI beside its values.
KvAppend groups(int new_tokens, int recent_tokens, int page_tokens) {
  KvAppend op;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 130,
              .new_tokens = new_tokens,
              .recent_tokens = recent_tokens,
              .sinks = 3,
              .page_tokens = page_tokens};
  op.keys = {.vector_size = 4, .index_bits = 16};
  op.keys.decoder = Decoder::affine;
  op.values = op.keys;
  op.keys.group_tokens = kTogether;
  op.values.token_scales = true;
  op.values.group_channels = 32;
  validate(op, "groups");
  return op;
}

class Groups : public SweepTest<> {
 protected:
  template <class Op>
  static Kernel kernel(const Op& op) {
    using Lanes = std::conditional_t<std::is_same_v<Op, KvAppend>, AppendSimt, AttentionSimt>;
    return Kernel(*sweep_backend(), op, rules_plan<Lanes>(op, sweep_gpu()), sweep_gpu());
  }
  // Expects right results from both dataflows; `changed` differs in data that must not be read.
  static void expect_right(const AttentionDecode& op, const AttentionData& data,
                           const AttentionData& changed) {
    const AttentionResult reference = reference_of(op, data);
    for (const bool fragments : {false, true}) {
      Kernel reader = fragments ? Kernel(*sweep_backend(), op,
                                         rules_plan<AttentionMma>(op, sweep_gpu()), sweep_gpu())
                                : kernel(op);
      const AttentionOutput out = reader.run(data);
      EXPECT_TRUE(is_right(reference, out, op.dtype)) << fragments;
      expect_same_bits(out, reader.run(changed));
    }
  }
};

// The keys [2][2][tokens][64] of a prompt.
FloatTensor keys_of(const AppendData& data) {
  FloatTensor keys{2, 2, data.new_tokens, 64, {}};
  for (std::int64_t i = 0; i < 2 * 2 * data.new_tokens; ++i) {
    const std::int64_t head = i / data.new_tokens;
    const std::int64_t token = i % data.new_tokens;
    const std::int64_t from = ((head / 2 * data.new_tokens + token) * 2 + head % 2) * 64;
    for (std::int64_t c = 0; c < 64; ++c) {
      keys.data.push_back(
          element_to_float(data.dtype, data.new_keys[static_cast<std::size_t>(from + c)]));
    }
  }
  return keys;
}

// Appending one token at a time, several, more than the ring has slots, and all at once gives equal
// codes, which are the quantizer's, and equal raw slots.
TEST_F(Groups, AreEncodedWholeOnceTheyAreFull) {
  constexpr int kPrompt = 109;
  for (const auto& [page_tokens, recent_tokens] :
       a_third({std::pair{0, 32}, {32, 45}, {0, 45}, {32, 32}})) {
    const AppendData all = prompt_of(groups(1, recent_tokens, page_tokens), kPrompt, 3);
    const AppendResult once =
        append_in_parts(kernel(groups(kPrompt, recent_tokens, page_tokens)), all, kPrompt);
    for (const int part : {1, 7, 40}) {
      SCOPED_TRACE(testing::Message() << page_tokens << ' ' << recent_tokens << ' ' << part);
      expect_same(append_in_parts(kernel(groups(part, recent_tokens, page_tokens)), all, part),
                  once);
    }
    FloatTensor keys = keys_of(all);
    FloatTensor full{2, 2, 96, 64, {}};
    for (std::int64_t head = 0; head < 4; ++head) {
      const auto from = keys.data.begin() + head * kPrompt * 64;
      full.data.insert(full.data.end(), from, from + 96 * 64);
    }
    const QuantizedTensor host =
        encode(full, {all.keys.format, all.dtype, all.keys.units, all.keys.codebooks, {}, {}});
    const std::int64_t words = host.row_words;
    for (std::int64_t head = 0; head < 4; ++head) {
      const auto expected = host.codes.begin() + head * 96 * words;
      const auto found = once.key_codes.begin() + head * 130 * words;
      EXPECT_TRUE(std::equal(expected, expected + 96 * words, found)) << head;
      const auto before = all.keys.codes.begin() + head * 130 * words;
      EXPECT_TRUE(std::equal(found + 96 * words, found + 130 * words, before + 96 * words));
    }
  }
}

// Lengths on both sides of a group's end; windows of every size, which end within groups.
TEST_F(Groups, AttentionReadsWhatIsNotFullRaw) {
  for (const int page_tokens : {0, 32}) {
    const KvAppend op = groups(1, 40, page_tokens);
    for (const int tokens : a_third({31, 32, 95, 96, 97, 130})) {
      const AppendData all = prompt_of(op, tokens, 5);
      const AppendResult cache =
          append_in_parts(kernel(groups(tokens, 40, page_tokens)), all, tokens);
      const AttentionDecode reader = reader_of(op, 4);
      AttentionData data = make_attention_data(reader, {.seed = 22});
      data.keys = all.keys;
      data.values = all.values;
      take_cache(data, cache);
      data.lengths.assign(2, tokens);
      data.recent_counts = {0, std::min(tokens, 39)};
      data.sinks = {2, 0};
      SCOPED_TRACE(tokens);
      // No token has the codes of a group that is not full.
      const AttentionData whole = data;
      for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
        for (std::int64_t head = 0; head < 4; ++head) {
          const auto row = tensor->codes.begin() + head * 130 * tensor->row_words;
          std::fill(row + tokens / kTogether * kTogether * tensor->row_words,
                    row + 130 * tensor->row_words, 0x7fffffffu);
        }
      }
      expect_right(reader, whole, data);
      const KvDequantize decode{reader.dtype,
                                {.batch = 2,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .tokens = 130,
                                 .recent_tokens = 40,
                                 .sinks = 3,
                                 .page_tokens = page_tokens},
                                reader.keys,
                                reader.values};
      Kernel dense(*sweep_backend(), decode, rules_plan<DequantizeSimt>(decode, sweep_gpu()),
                   sweep_gpu());
      const DequantizeVerdict verdict =
          judge_dequantize(data, reference_dequantize(data), dense.run_dequantize(data));
      EXPECT_TRUE(verdict.why.empty()) << verdict.why;
    }
  }
}

// Several query tokens, whose keys are in the cache or come with the query: each reads raw what was
// not full at its time.
TEST_F(Groups, QueryTokensReadWhatIsNotFullAtTheirTimeRaw) {
  for (const bool fresh : {false, true}) {
    AttentionDecode reader = reader_of(groups(1, 40, 32), 4);
    reader.shape.query_tokens = 5;
    for (const std::int32_t length : {62, 64, 66, 68}) {  // with a group's end among them
      AttentionData data = make_attention_data(reader, {.seed = 23, .fresh = fresh});
      data.lengths.assign(2, length);
      data.recent_counts = {0, 7};
      SCOPED_TRACE(testing::Message() << fresh << ' ' << length);
      expect_right(reader, data, data);
    }
  }
}

// A wrong scale, zero or number, and a changed word of a group that is not full.
TEST_F(Groups, TheJudgeFindsWhatIsWrong) {
  const KvAppend op = groups(40, 32, 0);
  const AppendData data = prompt_of(op, 40, 11);
  const AppendResult right = kernel(op).run(data);
  ASSERT_TRUE(judge_append(data, right).ok) << judge_append(data, right).why;
  const auto expect_found = [&](std::int64_t word, std::uint32_t bit, const std::string& what) {
    AppendResult wrong = right;
    wrong.key_codes[static_cast<std::size_t>(word)] ^= bit;
    const AppendVerdict verdict = judge_append(data, wrong);
    EXPECT_NE(verdict.why.find(what), std::string::npos) << verdict.why;
  };
  const std::int64_t row = data.keys.row_words;
  expect_found(5 * row + 8, 1u << 4, "channel 10: scale");   // of channels 10 and 11
  expect_found(5 * row + 9, 1u << 16, "channel 11: scale");  // its zero
  expect_found(5 * row + 2, 1u << 3, "token 5, channel 16");
  expect_found(32 * row, 1u, "token 32 was changed");
}

// KIVI's formula in plain loops over a channel of a group; also a constant channel, and one with
// NaN and infinity, whose finite elements alone set the range.
TEST_F(Groups, ZerosAndScalesAreKivis) {
  const KvAppend op = groups(kTogether, 32, 0);
  AppendData data = prompt_of(op, kTogether, 9);
  std::fill(data.keys.codebooks.begin(), data.keys.codebooks.end(),
            element_from_float(op.dtype, 1.0f));
  const auto element = [&](std::int64_t token, std::int64_t channel) -> std::uint16_t& {
    return data.new_keys[static_cast<std::size_t>(token * kTokenElements +
                                                  channel)];  // sequence 0, head 0
  };
  const std::uint16_t none[] = {0x7e00, 0x7c00, 0xfc00, 0xfe00};  // f16
  for (int t = 0; t < kTogether; ++t) {
    element(t, 5) = element_from_float(op.dtype, -1.25f);
    if (t < 4) element(t, 6) = none[t];
    element(t, 7) = none[t % 4];
  }
  const AppendResult cache = kernel(op).run(data);
  QuantizedTensor keys = data.keys;
  keys.codes = cache.key_codes;
  const FloatTensor decoded = [&] {
    QuantizedTensor first = keys;  // only whole groups
    first.batch = first.heads = 1;
    first.rows = kTogether;
    first.codes.resize(static_cast<std::size_t>(kTogether * keys.row_words));
    return decode(first);
  }();
  for (std::int64_t c = 0; c < 64; ++c) {
    float low = INFINITY, high = -INFINITY;
    for (int t = 0; t < kTogether; ++t) {
      const float x = element_to_float(op.dtype, element(t, c));
      if (!std::isfinite(x)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
    }
    if (c == 7) low = high = 0;
    const float scale =
        element_to_float(op.dtype, element_from_float(op.dtype, (high - low) / 15.0f));
    for (int t = 0; t < kTogether; ++t) {
      const float x = element_to_float(op.dtype, element(t, c));
      float code = 0;
      if (scale > 0 && !std::isnan(x)) {
        code = std::clamp(std::floor((x - low) / scale + 0.5f), 0.0f, 15.0f);
      }
      EXPECT_FLOAT_EQ(decoded.row(t)[static_cast<std::size_t>(c)], low + scale * code)
          << t << ' ' << c;
    }
  }
}

}  // namespace
}  // namespace vqgen::test

// kv_append beside the sweep: the quantizer's codes, the cache that attention reads, plans that
// change no bit, ties, NaN and infinity, and a judge that finds faults.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "quantizer/encode.h"
#include "quantizer/transform.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/prompts.h"

namespace vqgen::test {
namespace {

KvAppend append_problem() {
  KvAppend op;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 24,
              .new_tokens = 5,
              .recent_tokens = 4,
              .sinks = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 10, .scope = Scope::tensor};
  return op;
}

class Append : public SweepTest<> {
 protected:
  static Kernel kernel(const Problem& op, const Plan& plan) {
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
  static Kernel kernel(const KvAppend& op) {
    return kernel(op, rules_plan<AppendSimt>(op, sweep_gpu()));
  }
};

TEST_F(Append, PlansChangeNoBit) {
  const KvAppend op = append_problem();
  const AppendData data = make_append_data(op, {.seed = 3, .lengths = LengthPattern::ragged});
  const AppendResult right = kernel(op, AppendSimt{}).run(data);
  EXPECT_TRUE(judge_append(data, right).ok) << judge_append(data, right).why;
  for (const AppendSimt& plan :
       {AppendSimt{.threads = 256, .warps_along_entries = 8, .sub_vectors_per_warp = 1},
        AppendSimt{.threads = 64, .splits = 4, .tokens_per_block = 5},
        AppendSimt{.splits = 2, .warps_along_entries = 2, .sub_vectors_per_warp = 8}}) {
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    expect_same(right, kernel(op, plan).run(data));
  }
}

// Quantizes every row of a tensor: [batch][heads][tokens] of the new tokens.
QuantizedTensor quantized_on_the_host(const AppendData& data, const QuantizedTensor& cache,
                                      const std::vector<std::uint16_t>& elements) {
  FloatTensor rows{data.batch, cache.heads, data.new_tokens, cache.columns, {}};
  for (std::int64_t b = 0; b < data.batch; ++b) {
    for (std::int64_t head = 0; head < cache.heads; ++head) {
      for (std::int64_t i = 0; i < data.new_tokens; ++i) {
        const auto from = ((b * data.new_tokens + i) * cache.heads + head) * cache.columns;
        for (std::int64_t c = 0; c < cache.columns; ++c) {
          rows.data.push_back(
              element_to_float(data.dtype, elements[static_cast<std::size_t>(from + c)]));
        }
      }
    }
  }
  transform_keys(rows, cache.format, cache.smooth);
  return encode(rows,
                {cache.format, cache.dtype, cache.units, cache.codebooks, cache.stage_scales, {}});
}

// Counts the rows of one tensor that differ from the quantizer's, and copies the quantizer's to
// `into`.
int differing_rows(const AppendData& data, const QuantizedTensor& host, std::int64_t tokens,
                   const std::vector<std::uint32_t>& codes, std::vector<std::uint32_t>& into) {
  int different = 0;
  for (std::int64_t b = 0; b < data.batch; ++b) {
    for (std::int64_t head = 0; head < host.heads; ++head) {
      for (std::int64_t i = 0; i < data.new_tokens; ++i) {
        const std::int64_t token = data.positions[static_cast<std::size_t>(b)] + i;
        const auto from =
            host.codes.begin() + ((b * host.heads + head) * host.rows + i) * host.row_words;
        const auto to = ((b * host.heads + head) * tokens + token) * host.row_words;
        different += std::equal(from, from + host.row_words, codes.begin() + to) ? 0 : 1;
        std::copy(from, from + host.row_words, into.begin() + to);
      }
    }
  }
  return different;
}

// Transforms round in another order, so a near tie may resolve either way, and the judge takes both
// codes. Without transforms all codes are equal.
TEST_F(Append, CodesAreTheQuantizers) {
  for (const bool lattice : {false, true}) {
    KvAppend op = append_problem();
    op.shape.batch = 4;
    if (lattice) {
      op.keys = {.vector_size = 8, .index_bits = 16, .num_codebooks = 2, .scope = Scope::head};
      op.keys.decoder = Decoder::e8p;
      op.keys.hadamard = op.keys.stage_scales = true;
    }
    const AppendData data = make_append_data(op, {.seed = 11});
    const AppendResult result = kernel(op).run(data);
    const AppendVerdict verdict = judge_append(data, result);
    EXPECT_TRUE(verdict.ok) << verdict.why;
    AppendResult by_host = result;
    const int keys = differing_rows(data, quantized_on_the_host(data, data.keys, data.new_keys),
                                    op.shape.tokens, result.key_codes, by_host.key_codes);
    const int values =
        differing_rows(data, quantized_on_the_host(data, data.values, data.new_values),
                       op.shape.tokens, result.value_codes, by_host.value_codes);
    EXPECT_LE(keys, 1);  // of 40
    EXPECT_EQ(values, 0);
    EXPECT_TRUE(judge_append(data, by_host).ok) << judge_append(data, by_host).why;
  }
}

// Scalar codes are equal to the bit, also beyond the largest number.
TEST_F(Append, ScalarCodesAreTheQuantizers) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int vector : {2, 4, 0, 1}) {  // 0: by token; 1: by token and channels, with a zero
      KvAppend op = append_problem();
      op.dtype = dtype;
      op.shape.batch = 4;
      op.keys = {
          .vector_size = vector < 2 ? 2 : vector, .index_bits = 16, .scope = Scope::channel_group};
      op.keys.decoder = Decoder::scalar;
      op.values = {.vector_size = 2, .index_bits = 16, .scope = Scope::head};
      op.values.decoder = Decoder::e4m3;
      if (vector == 0) {
        op.keys.scope = op.values.scope = Scope::tensor;
        op.keys.token_scales = op.values.token_scales = true;
      }
      if (vector == 1) {
        op.keys.scope = Scope::tensor;
        op.keys.decoder = Decoder::affine;
        op.keys.token_scales = true;
        op.values = op.keys;
        op.values.vector_size = 4;
        op.values.group_channels = 16;
      }
      AppendData data = make_append_data(op, {.seed = 14});
      for (std::size_t i = 0; i < data.new_keys.size(); i += 7) {  // near the smallest numbers
        const float value = element_to_float(dtype, data.new_values[i]);
        data.new_values[i] = element_from_float(dtype, value / 4096);
      }
      for (std::size_t i = 0; i < data.new_keys.size(); i += 11) {  // and beyond all
        data.new_keys[i] = data.new_values[i] =
            element_from_float(dtype, i % 2 == 0 ? 3e4f : -3e4f);
      }
      const AppendResult result = kernel(op).run(data);
      const AppendVerdict verdict = judge_append(data, result);
      EXPECT_TRUE(verdict.ok) << verdict.why;
      AppendResult same = result;
      EXPECT_EQ(differing_rows(data, quantized_on_the_host(data, data.keys, data.new_keys),
                               op.shape.tokens, result.key_codes, same.key_codes),
                0);
      EXPECT_EQ(differing_rows(data, quantized_on_the_host(data, data.values, data.new_values),
                               op.shape.tokens, result.value_codes, same.value_codes),
                0);
    }
  }
}

TEST_F(Append, TiesGoToTheLowestIndex) {
  KvAppend op = append_problem();
  op.keys = {.vector_size = 2, .index_bits = 8, .num_codebooks = 1, .scope = Scope::tensor};
  AppendData data = make_append_data(op, {.seed = 12});
  // Entries 16 i + j, j < 16, are all the same.
  for (std::size_t i = 0; i < data.keys.codebooks.size(); ++i) {
    data.keys.codebooks[i] = data.keys.codebooks[i / 32 * 32 + i % 2];
  }
  AppendSimt plan{.warps_along_entries = 4};
  const AppendResult result = kernel(op, plan).run(data);
  EXPECT_TRUE(judge_append(data, result).ok) << judge_append(data, result).why;
  for (std::size_t row = 0; row < 2 * 2; ++row) {
    const std::size_t token = row * 24 + static_cast<std::size_t>(data.positions[row / 2]);
    for (std::size_t word = 0; word < 8; ++word) {
      EXPECT_EQ(result.key_codes[token * 8 + word] & 0x0f0f0f0fu, 0u) << row << ' ' << word;
    }
  }
}

// A row with NaN and infinity gets some code, and other rows keep theirs.
TEST_F(Append, NumbersThatAreNoneHarmNoOtherRow) {
  for (const Decoder decoder :
       {Decoder::table, Decoder::e8p, Decoder::scalar, Decoder::e4m3, Decoder::affine}) {
    KvAppend op = append_problem();
    op.values = {.vector_size = 8, .index_bits = decoder == Decoder::table ? 3 : 16};
    op.values.decoder = decoder;
    if (op.values.is_scalar()) op.values.vector_size = 2;
    op.values.token_scales = op.values.is_scalar();  // the keys keep a table
    op.shape.recent_tokens = op.shape.sinks = 0;
    AppendData data = make_append_data(op, {.seed = 13});
    Kernel append = kernel(op);
    AppendResult right = append.run(data);
    // Token 1 of sequence 0, head 1.
    const std::size_t row = 1 * 2 + 1;
    const std::uint16_t none[] = {0x7e00, 0x7c00, 0xfc00, 0xfe00};  // NaN and infinities in f16
    for (std::size_t i = 0; i < 64; ++i) {
      data.new_keys[row * 64 + i] = data.new_values[row * 64 + i] = none[i % 4];
    }
    AppendResult result = append.run(data);
    const auto clear = [&](std::vector<std::uint32_t>& codes, std::int64_t words) {
      const std::int64_t token = 1 * 24 + data.positions[0] + 1;
      std::fill_n(codes.begin() + token * words, words, 0u);
    };
    for (AppendResult* each : {&right, &result}) {
      clear(each->key_codes, data.keys.row_words);
      clear(each->value_codes, data.values.row_words);
    }
    expect_same(right, result);
  }
}

// Attention over a cache appended in steps equals attention over one encoded at once, with windows
// and sinks per sequence, from codes and raw tokens.
void expect_attention_over(const KvAppend& at_once, const AppendData& all,
                           const AppendResult& cache, const AppendResult& whole) {
  const AttentionDecode op = reader_of(at_once, 4);
  AttentionData data = make_attention_data(op, {.seed = 22});
  data.lengths.assign(2, static_cast<std::int32_t>(all.new_tokens));
  data.recent_counts = {4, 3};
  data.sinks = {2, 1};
  data.keys = all.keys;
  data.values = all.values;
  take_cache(data, cache);
  Kernel attention(*sweep_backend(), op, rules_plan<AttentionSimt>(op, sweep_gpu()), sweep_gpu());
  const AttentionOutput by_steps = attention.run(data);
  const AttentionResult reference = reference_of(op, data);
  EXPECT_TRUE(compare(reference.out, by_steps.out, op.dtype).ok);
  take_cache(data, whole);
  const AttentionOutput encoded_at_once = attention.run(data);
  EXPECT_EQ(by_steps.out, encoded_at_once.out);
  EXPECT_EQ(by_steps.lse, encoded_at_once.lse);
  // Raw tokens are the appended ones: attention over another token's raw keys differs.
  std::swap_ranges(data.raw_keys.begin(), data.raw_keys.begin() + 64, data.raw_keys.begin() + 128);
  EXPECT_NE(attention.run(data).out, by_steps.out);
}

// A prompt in parts, the last of which may be shorter, equals the whole in codes and raw slots.
TEST_F(Append, InPartsIsTheCacheThatIsEncodedAtOnce) {
  constexpr int kTokens = 19;
  for (const auto& [page_tokens, part] :
       {std::pair{0, 1}, std::pair{16, 1}, std::pair{0, 7}, std::pair{16, 7}}) {
    SCOPED_TRACE(testing::Message() << page_tokens << ' ' << part);
    KvAppend at_once = append_problem();
    at_once.shape.new_tokens = kTokens;
    at_once.shape.page_tokens = page_tokens;
    const AppendData all = prompt_of(at_once, kTokens, 21);
    const AppendResult whole = kernel(at_once).run(all);
    EXPECT_TRUE(judge_append(all, whole).ok) << judge_append(all, whole).why;

    KvAppend few = at_once;
    few.shape.new_tokens = part;
    const AppendResult cache = append_in_parts(kernel(few), all, part);
    expect_same(whole, cache);
    expect_attention_over(at_once, all, cache, whole);
  }
}

// Missing counts, and capacities that cut off a run of tokens.
TEST_F(Append, WithoutCountsAllAreAppendedThatFit) {
  const KvAppend op = append_problem();
  AppendData data = make_append_data(op, {.seed = 31});
  ASSERT_TRUE(data.counts.empty());
  Kernel append = kernel(op);
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::vector<std::int32_t>& positions :
       {std::vector{0, 19}, {20, 23}, {24, -1}, {kMost, -kMost - 1}}) {
    data.positions = positions;
    const AppendVerdict verdict = judge_append(data, append.run(data));
    EXPECT_TRUE(verdict.ok) << verdict.why;
    const bool none = positions[0] >= 24;
    EXPECT_EQ(verdict.codes == 0, none) << positions[0];
  }
}

}  // namespace
}  // namespace vqgen::test

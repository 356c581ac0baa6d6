// The places of pages, their size and their sharing change nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "generator/generate.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Pages : public SweepTest<> {};

AttentionDecode attention_problem(int page_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 4,
              .query_heads = 8,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 600,
              .recent_tokens = 30,
              .sinks = 3,
              .page_tokens = page_tokens};
  op.keys = {.vector_size = 4, .index_bits = 7, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 8, .index_bits = 9};
  return op;
}

// Each dataflow's plan for contiguous rows: pages change no plan.
std::vector<Plan> attention_plans(AttentionDecode op = attention_problem(0)) {
  op.shape.page_tokens = 0;
  std::vector<Plan> plans;
  for (const Plan& like : {Plan{AttentionSimt{}}, Plan{AttentionLut{}}, Plan{AttentionChannels{}},
                           Plan{AttentionMma{}}}) {
    plans.push_back(rules_plan(like, op, sweep_gpu()));
    EXPECT_TRUE(check(plans.back(), op, sweep_gpu()).ok) << dataflow_name(like);
    change_own(
        plans.back(), [](auto& own) requires requires { own.splits; } {
          own.threads = 64;
          own.splits = 2;
        });
  }
  return plans;
}

// Each seed draws an order of the pool, places, and which equal pages are shared.
TEST_F(Pages, OrderSizeAndSharingChangeNoBit) {
  const std::vector<Plan> plans = attention_plans();
  AttentionData data =
      make_attention_data(attention_problem(256), {.seed = 3, .lengths = LengthPattern::ragged});
  for (const Plan& plan : plans) {
    SCOPED_TRACE(dataflow_name(plan));
    std::optional<AttentionOutput> first;
    for (const int page_tokens : a_third({256, 16, 32, 64, 128})) {
      Kernel kernel(*sweep_backend(), attention_problem(page_tokens), plan, sweep_gpu());
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        data.paging_seed = seed;
        const AttentionOutput out = kernel.run(data);
        if (first) expect_same_bits(*first, out);
        if (!first) first = out;
      }
    }
    // Without pages a sequence's last step is elsewhere, which changes sums only in mma.
    const AttentionOutput plain =
        Kernel(*sweep_backend(), attention_problem(0), plan, sweep_gpu()).run(data);
    if (!std::holds_alternative<AttentionMma>(plan)) expect_same_bits(*first, plain);
  }
}

TEST_F(Pages, ThoseOfAPrefixAreShared) {
  const AttentionDecode op = attention_problem(16);
  AttentionData data = make_attention_data(op, {.seed = 3, .lengths = LengthPattern::ragged});
  const auto pages_of = [&](bool shared) {
    return make_pool(data.keys, data.values, data.lengths, 16, shared, Random(1)).pages;
  };
  EXPECT_LT(pages_of(true), pages_of(false)) << "no two sequences begin alike";
}

TEST_F(Pages, DecodedRowsAreThoseOfContiguousCodes) {
  const AttentionDecode like = attention_problem(16);
  KvDequantize op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {
      .batch = 4, .kv_heads = 2, .head_dim = 64, .tokens = 600, .recent_tokens = 30, .sinks = 3};
  AttentionData data = make_dequantize_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const DequantizeOutput plain =
      Kernel(*sweep_backend(), op, plan, sweep_gpu()).run_dequantize(data);
  for (const int page_tokens : {16, 128}) {
    op.shape.page_tokens = page_tokens;
    Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      data.paging_seed = seed;
      const DequantizeOutput out = kernel.run_dequantize(data);
      EXPECT_EQ(out.keys, plain.keys);
      EXPECT_EQ(out.values, plain.values);
    }
  }
}

TEST_F(Pages, AppendedRowsAreThoseOfContiguousCodes) {
  const AttentionDecode like = attention_problem(16);
  KvAppend op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 4, .kv_heads = 2, .head_dim = 64, .tokens = 100, .new_tokens = 40};
  AppendData data = make_append_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  const AppendResult plain = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  for (const int page_tokens : {16, 64}) {
    op.shape.page_tokens = page_tokens;
    Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      data.paging_seed = seed;
      const AppendResult out = kernel.run(data);
      EXPECT_EQ(out.key_codes, plain.key_codes);
      EXPECT_EQ(out.value_codes, plain.value_codes);
    }
  }
}

// Masks the codes that a call reads with `kept` and sets all others to ones: those of sequence
// `but`, of raw tokens, and of tokens past a length. Codes have 8 bits.
void mark_codes(AttentionData& data, std::int64_t but, std::uint32_t kept) {
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    for (std::int64_t row = 0; row < tensor->batch * tensor->heads * tensor->rows; ++row) {
      const std::int64_t b = row / (tensor->heads * tensor->rows);
      const std::int64_t token = row % tensor->rows;
      const bool read = b != but && token < data.lengths[static_cast<std::size_t>(b)] &&
                        token_place(data, b, token) == TokenPlace::codes;
      const auto first = tensor->codes.begin() + row * tensor->row_words;
      std::for_each(first, first + tensor->row_words,
                    [&](std::uint32_t& word) { word = read ? word & kept : ~0u; });
    }
  }
}

// Sets the upper half of a codebook's 256 entries.
void set_upper_entries(QuantizedTensor& tensor, std::uint16_t bits) {
  const auto half = static_cast<std::size_t>(128 * tensor.format.vector_size);
  for (std::size_t i = 0; i < tensor.codebooks.size(); ++i) {
    if (i / half % 2 == 1) tensor.codebooks[i] = bits;
  }
}

// NaN in another sequence's pages and raw tokens, in unowned pages, and in the rest of the last
// page must not change a bit of a sequence.
TEST_F(Pages, WhatIsNoNumberStaysInItsSequence) {
  constexpr std::int64_t kBad = 1;
  AttentionDecode op = attention_problem(16);
  op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 8};
  for (const int query_tokens : {1, 3}) {
    op.shape.query_tokens = query_tokens;
    AttentionData data = make_attention_data(op, {.seed = 6});
    data.lengths = {333, 600, 5, 64};
    mark_codes(data, kBad, 0x7f7f7f7f);
    AttentionData bad = data;
    for (QuantizedTensor* tensor : {&bad.keys, &bad.values}) set_upper_entries(*tensor, 0x7e00);
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) set_upper_entries(*tensor, 0);
    const auto raw = static_cast<std::ptrdiff_t>(bad.raw_keys.size()) / bad.batch;
    std::fill_n(bad.raw_keys.begin() + kBad * raw, raw, 0x7e00);
    std::fill_n(bad.raw_values.begin() + kBad * raw, raw, 0x7e00);
    for (const Plan& plan : a_third(attention_plans(op))) {
      SCOPED_TRACE(testing::Message() << dataflow_name(plan) << ' ' << query_tokens);
      Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
      const AttentionOutput expected = kernel.run(data);
      const AttentionOutput output = kernel.run(bad);
      const auto width = static_cast<std::size_t>(op.shape.query_heads * op.shape.head_dim);
      for (std::int64_t b = 0; b < data.batch; ++b) {
        const auto [first, last] = data.query_rows(b);
        const auto from = static_cast<std::size_t>(first) * width;
        const auto to = static_cast<std::size_t>(last) * width;
        const bool same = std::equal(expected.out.begin() + static_cast<std::ptrdiff_t>(from),
                                     expected.out.begin() + static_cast<std::ptrdiff_t>(to),
                                     output.out.begin() + static_cast<std::ptrdiff_t>(from));
        EXPECT_EQ(same, b != kBad) << b;
        const auto heads = static_cast<std::size_t>(op.shape.query_heads);
        for (std::size_t i = from / width * heads; i < to / width * heads; ++i) {
          EXPECT_EQ(std::isfinite(output.lse[i]), b != kBad) << i;
        }
      }
    }
  }
}

// A kernel that takes the next entry of the table reads another sequence's page or none.
TEST_F(Pages, AWrongPageIsFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "it would read anywhere";
  const AttentionDecode op = attention_problem(16);
  const AttentionData data = make_attention_data(op, {.seed = 3});
  for (const Plan& plan : a_third(attention_plans())) {
    SCOPED_TRACE(dataflow_name(plan));
    KernelSource source = generate(op, plan, sweep_gpu(), Machine::host, {});
    const bool fragments = std::holds_alternative<AttentionMma>(plan);
    const std::string right =
        fragments ? "number < last_page_ ? number : last_page_" : "number / kPageTokens);";
    const std::string wrong = fragments ? "number" : "number / kPageTokens + 1);";
    ASSERT_NE(source.text.find(right), std::string::npos);
    source.text.replace(source.text.find(right), right.size(), wrong);
    const auto kernel = sweep_backend()->load(sweep_backend()->compile(source), source);
    message_of([&] { execute(*sweep_backend(), *kernel, source, op, plan, data); },
               ErrorKind::device);
  }
}

// Writes beside a pool's rows are found.
TEST_F(Pages, ARowInAPageOfNobodyIsFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "it would write anywhere";
  const AttentionDecode like = attention_problem(16);
  KvAppend op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 20, .page_tokens = 16};
  const AppendData data = make_append_data(op, {.seed = 8});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  KernelSource source = generate(op, plan, sweep_gpu(), Machine::host, {});
  const std::string right = "paged_row(tensor, number % kPageTokens)";
  ASSERT_NE(source.text.find(right), std::string::npos);
  source.text.replace(source.text.find(right), right.size(),
                      "paged_row(tensor, number % kPageTokens + 3)");  // past the last row
  const auto kernel = sweep_backend()->load(sweep_backend()->compile(source), source);
  const std::string why =
      message_of([&] { execute(*sweep_backend(), *kernel, source, op, plan, data); },
                 ErrorKind::verification_failed);
  EXPECT_NE(why.find("no row's of a sequence"), std::string::npos) << why;
}

}  // namespace
}  // namespace vqgen::test

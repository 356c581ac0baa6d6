// Raw rows in pages are those of slots, and rows of tokens in no window are not read.
#include <gtest/gtest.h>

#include <algorithm>

#include "generator/generate.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class RawPages : public SweepTest<> {};

constexpr int kWindow = 30;
constexpr std::uint16_t kNaN = 0x7e00;

AttentionDecode attention_problem(int raw_page_tokens, int query_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 8,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 500,
              .recent_tokens = kWindow,
              .page_tokens = 16,
              .raw_page_tokens = raw_page_tokens,
              .query_tokens = query_tokens};
  op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head, .stage_scales = true};
  op.keys.entry_type = EntryType::int8;
  op.values = op.keys;
  return op;
}

std::vector<Plan> plans_of(const AttentionDecode& op) {
  std::vector<Plan> plans;
  for (const Plan& like : {Plan{AttentionSimt{}}, Plan{AttentionLut{}}, Plan{AttentionChannels{}},
                           Plan{AttentionMma{}}, Plan{AttentionInt8Mma{}}}) {
    plans.push_back(rules_plan(like, op, sweep_gpu()));
    EXPECT_TRUE(check(plans.back(), op, sweep_gpu()).ok) << dataflow_name(like);
    change_own(
        plans.back(), [](auto& own) requires requires { own.splits; } {
          own.threads = std::min(own.threads, 128);
          own.splits = 2;
        });
  }
  return plans;
}

// The data with a row for each token; those of tokens that had no slot are no numbers.
template <class Data>
Data in_pages(const Data& data, const std::vector<std::int32_t>& lengths, int raw_page_tokens) {
  Data paged = data;
  paged.raw_page_tokens = raw_page_tokens;
  const auto [heads, rows, dim] = std::tuple(data.keys.heads, data.keys.rows, data.keys.columns);
  for (auto* const raw : {&paged.raw_keys, &paged.raw_values}) {
    const std::vector<std::uint16_t> slots = std::move(*raw);
    raw->assign(static_cast<std::size_t>(data.keys.batch * heads * rows * dim), kNaN);
    for (std::int64_t head = 0; head < data.keys.batch * heads; ++head) {
      const std::int64_t length = lengths[static_cast<std::size_t>(head / heads)];
      for (std::int64_t t = std::max<std::int64_t>(0, length - kWindow); t < length; ++t) {
        std::copy_n(slots.begin() + (head * kWindow + t % kWindow) * dim, dim,
                    raw->begin() + (head * rows + t) * dim);
      }
    }
  }
  return paged;
}

TEST_F(RawPages, AttentionReadsThemAsSlots) {
  std::uint64_t number = 0;
  for (const int query_tokens : {1, 3}) {
    for (const bool fresh : {false, true}) {
      if (fresh && query_tokens == 1) continue;
      const AttentionDecode slots = attention_problem(0, query_tokens);
      const AttentionData data =
          make_attention_data(slots, {.seed = 5, .lengths = LengthPattern::ragged, .fresh = fresh});
      for (const Plan& plan : a_third(plans_of(slots), third_after(number++))) {
        const AttentionOutput expected =
            Kernel(*sweep_backend(), slots, plan, sweep_gpu()).run(data);
        for (const int page : a_third({8, 16, 24, 48, 256})) {
          SCOPED_TRACE(testing::Message() << dataflow_name(plan) << ' ' << query_tokens << ' '
                                          << fresh << ' ' << page);
          Kernel kernel(*sweep_backend(), attention_problem(page, query_tokens), plan, sweep_gpu());
          AttentionData paged = in_pages(data, data.lengths, page);
          for (std::uint64_t seed = 1; seed <= 4; ++seed) {
            paged.paging_seed = seed;
            expect_same_bits(expected, kernel.run(paged));
          }
        }
      }
    }
  }
}

TEST_F(RawPages, DecodedRowsAreThoseOfSlots) {
  const AttentionDecode like = attention_problem(0, 1);
  KvDequantize op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 3,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 500,
              .recent_tokens = kWindow,
              .page_tokens = 16};
  const AttentionData data =
      make_dequantize_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const DequantizeOutput plain =
      Kernel(*sweep_backend(), op, plan, sweep_gpu()).run_dequantize(data);
  for (const int page : {8, 24, 64}) {
    op.shape.raw_page_tokens = page;
    const DequantizeOutput out = Kernel(*sweep_backend(), op, plan, sweep_gpu())
                                     .run_dequantize(in_pages(data, data.lengths, page));
    EXPECT_EQ(out.keys, plain.keys);
    EXPECT_EQ(out.values, plain.values);
  }
}

// An append has a row for each new token, of which slots keep the newest.
TEST_F(RawPages, AppendedRowsAreAllKept) {
  const AttentionDecode like = attention_problem(0, 1);
  KvAppend op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 3,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 200,
              .new_tokens = 70,
              .recent_tokens = kWindow};
  const AppendData data = make_append_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  const AppendResult plain = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  for (const int page : {8, 24, 64}) {
    op.shape.raw_page_tokens = page;
    AppendData paged = in_pages(data, std::vector<std::int32_t>(3, 0), page);
    const AppendResult out = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(paged);
    EXPECT_EQ(out.key_codes, plain.key_codes);
    EXPECT_EQ(out.value_codes, plain.value_codes);
    const std::int64_t dim = op.shape.head_dim;
    for (std::int64_t head = 0; head < 6; ++head) {
      const auto b = static_cast<std::size_t>(head / 2);
      const std::int64_t first = data.positions[b];
      const std::int64_t count =
          first < 0 ? 0
                    : std::min<std::int64_t>(data.counts.empty() ? 70 : data.counts[b],
                                             op.shape.tokens - first);
      for (std::int64_t t = 0; t < op.shape.tokens; ++t) {
        const auto row = out.raw_keys.begin() + (head * op.shape.tokens + t) * dim;
        const bool is_new = t >= first && t < first + count;
        const auto given = data.new_keys.begin() +
                           ((static_cast<std::int64_t>(b) * 70 + t - first) * 2 + head % 2) * dim;
        EXPECT_TRUE(is_new ? std::equal(row, row + dim, given)
                           : std::count(row, row + dim, kNaN) == dim)
            << head << ' ' << t;
      }
    }
  }
}

TEST_F(RawPages, WrongOnesAreFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "it would read anywhere";
  const AttentionDecode op = attention_problem(16, 1);
  const AttentionData data =
      in_pages(make_attention_data(attention_problem(0, 1), {.seed = 3}), {500, 500, 500}, 16);
  const AttentionResult reference = OpTraits<AttentionDecode>::reference(op, data);
  for (const auto& [right, wrong] :
       {std::pair{"table + token / kPageTokens)", "table + (token + 1) / kPageTokens)"},
        std::pair{"token % kPageTokens * token_stride(args)",
                  "(token + 1) % kPageTokens * token_stride(args)"},
        std::pair{"args.raw_table + batch * args.raw_table_columns",
                  "args.raw_table + 0 * args.raw_table_columns"}}) {
    for (const Plan& plan : a_third(plans_of(op))) {
      SCOPED_TRACE(testing::Message() << dataflow_name(plan) << ' ' << wrong);
      KernelSource source = generate(op, plan, sweep_gpu(), Machine::host, {});
      ASSERT_NE(source.text.find(right), std::string::npos);
      source.text.replace(source.text.find(right), std::string(right).size(), wrong);
      const auto kernel = sweep_backend()->load(sweep_backend()->compile(source), source);
      bool found = false;
      try {
        const AttentionOutput out = execute(*sweep_backend(), *kernel, source, op, plan, data);
        found = !OpTraits<AttentionDecode>::judge(op, data, reference, out).ok;
      } catch (const Error&) {  // a page that is none, or no number
        found = true;
      }
      EXPECT_TRUE(found);
    }
  }
}

TEST_F(RawPages, WhatTheyCannotHoldIsRefused) {
  const auto refused = [](auto change) {
    AttentionDecode op = attention_problem(16, 1);
    change(op);
    return message_of([&] { validate(Problem{op}, "config"); }, ErrorKind::bad_input);
  };
  using Op = AttentionDecode;
  EXPECT_NE(refused([](Op& op) { op.shape.raw_page_tokens = 12; }).find("multiple of 8"),
            std::string::npos);
  EXPECT_NE(refused([](Op& op) { op.shape.recent_tokens = 0; }).find("recent_tokens is 0"),
            std::string::npos);
  EXPECT_NE(refused([](Op& op) { op.shape.sinks = 4; }).find("/shape/sinks"), std::string::npos);
  EXPECT_NE(refused([](Op& op) { op.shape.flush_block = 8; }).find("/shape/flush_block"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen::test

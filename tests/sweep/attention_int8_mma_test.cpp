// Attention by int8_mma: all softmaxes are as exact as with 16-bit products, heads and sequences do
// not affect each other, and kernels that drop a part are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/generate.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/attention_by_bytes.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/sequences.h"

namespace vqgen::test {
namespace {

// Queries of every size: from equal weights for all tokens to all weight on one.
TEST_P(AttentionByBytes, FlatAndPeakedSoftmaxesAreExact) {
  for (const float size : a_third({0.0f, 0.1f, 1.0f, 4.0f, 40.0f})) {
    for (const int group : {4, 7}) {
      SCOPED_TRACE(testing::Message() << size << ' ' << group);
      const AttentionDecode op = problem(128, group);
      AttentionData data = make_attention_data(op, {.seed = 41});
      scale_queries(data, op.dtype, size);
      expect_right(op, plan(op), data);
    }
  }
}

// The largest entries of one sign, with equal probabilities: sums as large as possible for so many
// tokens.
TEST_P(AttentionByBytes, SumsOfTheLargestNumbersAreExact) {
  for (const float sign : {1.0f, -1.0f}) {
    const AttentionDecode op = problem();
    AttentionData data = make_attention_data(op, {.seed = 42});
    for (auto* const of : {&data.keys, &data.values}) {
      for (std::uint16_t& bits : of->codebooks) bits = element_from_float(op.dtype, sign * 127);
    }
    expect_right(op, plan(op), data);
  }
}

// The maximum rises with each step, by a little or a lot, or never after the first.
TEST_P(AttentionByBytes, RisingAndFallingScoresAreExact) {
  for (const bool rising : {true, false}) {
    const AttentionDecode op = problem();
    AttentionData data = make_attention_data(op, {.seed = 43});
    // Code e of a key is about e - 128 in its first channel of each sub-vector.
    for (std::size_t i = 0; i < data.keys.codebooks.size(); ++i) {
      const auto level = static_cast<float>(i / 4 % 256) - 128;
      data.keys.codebooks[i] =
          element_from_float(op.dtype, i % 4 == 0 ? std::max(level, -127.0f) : 0.0f);
    }
    for (std::uint16_t& bits : data.queries) bits = element_from_float(op.dtype, 0.5f);
    const auto row = static_cast<std::size_t>(op.keys.row_words(op.shape.head_dim));
    for (std::size_t i = 0; i < data.keys.codes.size(); ++i) {
      const std::size_t token = i / row % static_cast<std::size_t>(op.shape.tokens);
      const std::uint32_t code = static_cast<std::uint32_t>(token * 255 / 300);
      data.keys.codes[i] = (rising ? code : 255 - code) * 0x01010101u;
    }
    expect_right(op, plan(op), data);
  }
}

// The first token scores 9 to 11 above thousands of others, which together have as much weight. In
// the first token's warp, and in warps that begin with its maximum, each of the others has only a
// few of the 65,536 steps of a probability.
TEST_P(AttentionByBytes, AFirstTokenOfMostOfTheWeightLeavesTheOthersTheirs) {
  for (const float score : {9.0f, 10.0f, 11.0f}) {
    AttentionDecode op = problem(64, 4, 4000);
    AttentionData data = make_attention_data(op, {.seed = 50});
    constexpr int kFirst = 255;  // only the first token has this entry
    for (std::size_t i = 0; i < data.keys.codebooks.size(); ++i) {
      const auto entry = static_cast<int>(i / 4 % 256);
      const float own = entry == kFirst ? 127.0f : static_cast<float>(entry % 17 - 8);
      data.keys.codebooks[i] = element_from_float(op.dtype, i % 4 == 0 ? own : 0.0f);
    }
    for (std::uint16_t& bits : data.queries) bits = element_from_float(op.dtype, 0.5f);
    // 16 sub-vectors of 127 x 0.5, over sqrt(64)
    for (float& scale : data.keys.stage_scales) scale = score / 127;
    const auto row = static_cast<std::size_t>(op.keys.row_words(op.shape.head_dim));
    for (std::size_t i = 0; i < data.keys.codes.size(); ++i) {
      const bool first = i / row % static_cast<std::size_t>(op.shape.tokens) == 0;
      std::uint32_t& word = data.keys.codes[i];
      word = first ? ~0u : word & 0x7f7f7f7fu;
    }
    for (const int threads : {32, 256}) {
      AttentionInt8Mma own = plan(op);
      own.threads = threads;
      SCOPED_TRACE(testing::Message() << score << ' ' << threads);
      expect_right(op, own, data);
    }
  }
}

// Warps of a block begin with a common maximum, lower the more tokens there are, or their own if
// that is larger. Warps without tokens do not delay others.
TEST_P(AttentionByBytes, WarpsThatBeginWithAMaximumInCommonAreExact) {
  for (const std::int64_t tokens : a_third({8192, 8193, 33})) {
    const AttentionDecode op = problem(64, 4, tokens);
    expect_right(op, plan(op), make_attention_data(op, {.seed = 52}));
    const AttentionDecode two_quads = problem(64, 7, tokens);
    expect_right(two_quads, plan(two_quads, 2), make_attention_data(two_quads, {.seed = 53}));
  }
  const AttentionDecode op = problem(64, 1, 32769);
  AttentionInt8Mma own = plan(op);
  own.threads = 256;
  expect_right(op, own, make_attention_data(op, {.seed = 54}));
}

TEST_P(AttentionByBytes, SplitsAndHeadsChangeNoMoreThanRounding) {
  const AttentionDecode op = problem(64, 10);
  const AttentionData data =
      make_attention_data(op, {.seed = 44, .lengths = LengthPattern::ragged});
  for (const int splits : a_third({1, 3, 12})) {
    for (const int heads : {1, 3, 5, 8}) {
      SCOPED_TRACE(testing::Message() << splits << ' ' << heads);
      AttentionInt8Mma own = plan(op, splits);
      own.heads_per_block = heads;
      expect_right(op, own, data);
    }
  }
}

TEST_P(AttentionByBytes, WhoMergesAndTheOrderOfLanesChangeNoBit) {
  const AttentionDecode op = problem();
  const AttentionData data =
      make_attention_data(op, {.seed = 45, .lengths = LengthPattern::ragged});
  const AttentionInt8Mma by_kernel = plan(op, 3);
  AttentionInt8Mma by_last = by_kernel;
  by_last.combine = Combine::last_block;
  const AttentionOutput once = run(op, by_kernel, data);
  for (const std::size_t order : {0u, 1u, 2u}) {
    expect_same_bits(once, Kernel(*sweep_backend(order), op, by_last, sweep_gpu()).run(data));
  }
  for (const int rounds : {3, 4, 8}) {
    AttentionInt8Mma deeper = by_kernel;
    deeper.pipeline_stages = rounds;
    expect_same_bits(once, run(op, deeper, data));
  }
}

// A NaN or infinity in one head's query changes no other output, and a NaN makes that head's output
// NaN.
TEST_P(AttentionByBytes, WhatIsNoNumberStaysInItsHead) {
  const AttentionDecode op = problem(64, 5);
  const AttentionData data = make_attention_data(op, {.seed = 46});
  const AttentionOutput before = run(op, plan(op), data);
  const auto head_dim = static_cast<std::size_t>(op.shape.head_dim);
  for (const float none :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    constexpr std::size_t kHead = 12;  // in the second sequence
    AttentionData lost = data;
    lost.queries[kHead * head_dim + 5] = element_from_float(op.dtype, none);
    const AttentionOutput after = run(op, plan(op), lost);
    for (std::size_t i = 0; i < after.out.size(); ++i) {
      if (i / head_dim != kHead) {
        ASSERT_EQ(after.out[i], before.out[i]) << none << ' ' << i;
      } else if (std::isnan(none)) {
        ASSERT_TRUE(std::isnan(element_to_float(op.dtype, after.out[i]))) << none << ' ' << i;
      }
    }
  }
}

TEST_P(AttentionByBytes, TokensBehindTheLastChangeNoBitAndNoneGiveZeros) {
  const AttentionDecode op = problem();
  AttentionData data = make_attention_data(op, {.seed = 47});
  data.lengths = {0, 133};
  const AttentionOutput before = run(op, plan(op), data);
  AttentionData changed = data;
  changed.recent_counts = changed.sinks = {0, 0};
  change_unread_codes(changed, [](std::uint32_t& word) { word = ~word; });
  expect_same_bits(before, run(op, plan(op), changed));
  for (std::size_t h = 0; h < 8; ++h) {
    EXPECT_EQ(before.lse[h], -std::numeric_limits<float>::infinity());
    for (std::size_t c = 0; c < 64; ++c) EXPECT_EQ(before.out[h * 64 + c], 0) << h << ' ' << c;
  }
}

TEST_P(AttentionByBytes, SequencesAloneHaveTheBitsOfTheBatch) {
  for (const bool batch_invariant : {false, true}) {
    AttentionDecode op = problem();
    op.shape.batch_invariant = batch_invariant;
    AttentionData data = make_attention_data(op, {.seed = 49});
    data.lengths = {261, 97};
    const AttentionOutput output = run(op, plan(op, 3), data);
    AttentionDecode one = op;
    one.shape.batch = 1;
    for (std::int64_t b = 0; b < data.batch; ++b) {
      SCOPED_TRACE(testing::Message() << batch_invariant << ' ' << b);
      expect_same_bits(run(one, plan(one, 3), sequence_of(data, b)),
                       part_of(output, b, data.batch));
    }
  }
}

// Pages of each size in each order change no bit, with splits that begin within a page and an
// inactive sequence; a wrong page does.
TEST_P(AttentionByBytes, PagesChangeNoBit) {
  for (const int head_dim : {64, 128}) {
    AttentionDecode op = problem(head_dim, 4, 450);
    AttentionData data = make_attention_data(op, {.seed = 50});
    data.lengths = {450, head_dim == 64 ? 97 : 0};
    const AttentionOutput contiguous = run(op, plan(op, 3), data);
    for (const int page_tokens : a_third({16, 32, 64, 128, 256})) {
      op.shape.page_tokens = page_tokens;
      for (const auto& order : kPageOrders) {
        if (!order) continue;
        data.page_order = *order;
        data.paging_seed = static_cast<std::uint64_t>(page_tokens);
        SCOPED_TRACE(testing::Message()
                     << head_dim << ' ' << page_tokens << ' ' << static_cast<int>(*order));
        expect_same_bits(contiguous, run(op, plan(op, 3), data));
      }
    }
  }
}

TEST_P(AttentionByBytes, WrongPagesAreFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "they would be read anywhere";
  AttentionDecode op = problem(128, 4, 450);
  const auto expect_found = [&](int page_tokens, std::initializer_list<Fault> faults) {
    op.shape.page_tokens = 0;
    AttentionData data = make_attention_data(op, {.seed = 50});
    data.page_order = PageOrder::nhd;
    const AttentionInt8Mma own = plan(op, 3);
    const AttentionOutput contiguous = run(op, own, data);
    op.shape.page_tokens = page_tokens;
    expect_faults_found(op, own, faults,
                        [&](Kernel& faulty) { return faulty.run(data).out == contiguous.out; });
  };
  expect_found(16, {{"const int further = copy * kApart % kPage;", "const int further = 0;"},
                    {"number < last ? number : last", "number < last ? number : 0"},
                    {"static_cast<u32>(Own::own_row() % kPage), row_bytes", "0u, row_bytes"}});
  expect_found(256,
               {{"static_cast<u32>(first) % kPage, rows", "static_cast<u32>(first) % 32, rows"},
                {"static_cast<u32>(copy * kApart)", "static_cast<u32>(copy)"}});
  op.keys.vector_size = op.values.vector_size = 2;  // lanes copy rows of both pages of a step
  expect_found(16, {{"first + own + place * apart : first", "first + own : first"},
                    {"i * kApart / kRowsOfPage", "0"}});
}

// Each fault changes one place of the kernel's text.
TEST_P(AttentionByBytes, WrongSumsAreFound) {
  const AttentionDecode op = problem();
  const AttentionInt8Mma own = plan(op);
  const AttentionData data = make_attention_data(op, {.seed = 48});
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {{"fused(high, 256.0f, low)", "high * 256.0f"},
                          {"fused(high, 256.0f, low)", "fused(high, 250.0f, low)"},
                          {"own = (own + half) >> bits;", ";"},
                          {"kOne = 15.98f", "kOne = 2.0f"},
                          {"? most : -infinity()", "? most : most"},
                          {"0x7362u", "0x5140u"},
                          {"= ceiling(maximum_[quad]);", "= ceiling(maximum_[quad]) + 12.0f;"}};
  expect_faults_found(op, own, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

// Raw tokens: few, many, none or all, with one split and with several.
TEST_P(AttentionByBytes, RawTokensCountOnce) {
  for (const int head_dim : {64, 128}) {
    AttentionDecode op = problem(head_dim, head_dim == 64 ? 4 : 7);
    op.shape.recent_tokens = 200;
    op.shape.sinks = 50;
    for (const auto& [lengths, recent_counts, sinks] :
         {std::tuple{std::vector{300, 97}, std::vector{200, 0}, std::vector{50, 7}},
          std::tuple{std::vector{200, 9}, std::vector{200, 9}, std::vector{0, 9}},
          std::tuple{std::vector{220, 40}, std::vector{180, 1}, std::vector{40, 39}},
          std::tuple{std::vector{1, 50}, std::vector{0, 0}, std::vector{1, 50}},
          std::tuple{std::vector{260, 0}, std::vector{3, 0}, std::vector{33, 0}}}) {
      AttentionData data = make_attention_data(op, {.seed = 51});
      data.lengths = {lengths[0], lengths[1]};
      data.recent_counts = {recent_counts[0], recent_counts[1]};
      data.sinks = {sinks[0], sinks[1]};
      for (const int splits : {1, 3}) {
        SCOPED_TRACE(testing::Message() << head_dim << ' ' << lengths[0] << ' ' << splits);
        expect_right(op, plan(op, splits), data);
      }
    }
  }
}

TEST_P(AttentionByBytes, WrongRawTokensAreFound) {
  AttentionDecode op = problem();
  op.shape.recent_tokens = 100;
  op.shape.sinks = 20;
  const AttentionInt8Mma own = plan(op, 2);
  AttentionData data = make_attention_data(op, {.seed = 52});
  data.lengths = {300, 170};
  data.recent_counts = {93, 100};
  data.sinks = {13, 20};
  const Fault faults[] = {
      {"&& token >= from_;", ";"},
      {"counts ? soft_capped<Plan>", "true ? soft_capped<Plan>"},
      {"(kSkips && first < from_)", "false"},
      {"warp() + kWarps * turn", "warp() + kWarps * turn + turn"},
      {"sum_[quad] = fused(sum_[quad], factor, p);", "sum_[quad] += p;"},
      {"fused(raw.sum(quad), of_raw, total)", "total"},
      {"return clip(raw.recent_tokens > 0 ? raw.recent_tokens : 0, seen);", "return seen;"}};
  expect_faults_found(op, own, faults, [&](Kernel& faulty) {
    bool right = true;
    for (const float size : {0.0f, 1.0f, 8.0f}) {  // flat softmaxes, whose maximum never rises, too
      AttentionData sized = data;
      scale_queries(sized, op.dtype, size);
      right = right && is_right(reference_of(op, sized), faulty.run(sized), op.dtype);
    }
    return right;
  });
}

INSTANTIATE_TEST_SUITE_P(Elements, AttentionByBytes, testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(enum_name(test.param)); });

}  // namespace
}  // namespace vqgen::test

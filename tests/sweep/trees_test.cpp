// Drafts in a tree, in each dataflow of attention_decode that has several query tokens: against the
// reference, laws, and seeded faults.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct TreeCase {
  const char* name;
  Plan dataflow;
  int heads_per_block;  // of mma and int8_mma; with more than 2, of several drafts
  int drafts;
};

std::vector<TreeCase> tree_cases() {
  return {{"simt", AttentionSimt{}, 0, 7},
          {"lut", AttentionLut{}, 0, 7},
          {"channels", AttentionChannels{}, 0, 7},
          {"mma", AttentionMma{}, 2, 7},
          {"mma, several", AttentionMma{}, 8, 7},
          {"mma, 64", AttentionMma{}, 16, 64},
          {"int8_mma", AttentionInt8Mma{}, 2, 7},
          {"int8_mma, several", AttentionInt8Mma{}, 6, 7},
          {"int8_mma, 64", AttentionInt8Mma{}, 8, 64}};
}

class Trees : public SweepTest<testing::TestWithParam<TreeCase>> {
 protected:
  static AttentionDecode problem() {
    AttentionDecode op;
    op.shape = {.batch = 3,
                .query_heads = 4,
                .kv_heads = 2,
                .head_dim = 64,
                .tokens = 220,
                .recent_tokens = 30,
                .sinks = 3,
                .query_tokens = GetParam().drafts};
    op.shape.tree_mask = true;
    op.keys = find_format("vecinfer-d4b8i8", "test");
    op.values = for_values(op.keys);
    return op;
  }
  static Plan plan(const AttentionDecode& op, int splits) {
    Plan plan = narrow_plan(GetParam().dataflow, op, sweep_gpu(), splits);
    const auto change_heads = [&](auto& own) { own.heads_per_block = GetParam().heads_per_block; };
    change_own(plan, [&](AttentionMma& own) { change_heads(own); });
    change_own(plan, [&](AttentionInt8Mma& own) { change_heads(own); });
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return plan;
  }
  static AttentionData data(const AttentionDecode& op, std::uint64_t seed) {
    AttentionData data = make_attention_data(op, {.seed = seed, .lengths = LengthPattern::ragged});
    data.lengths = {150, 0, 31};
    return data;
  }
  static Kernel kernel(const AttentionDecode& op, int splits) {
    return Kernel(*sweep_backend(), op, plan(op, splits), sweep_gpu());
  }
};

std::size_t at(std::int64_t number) { return static_cast<std::size_t>(number); }

TEST_P(Trees, GiveWhatTheReferenceGives) {
  for (const int kind : a_third({0, 1, 2, 3, 4, 5})) {
    SCOPED_TRACE(kind);
    AttentionDecode op = problem();
    op.dtype = kind % 2 == 0 ? DType::f16 : DType::bf16;
    if (kind == 1) op.shape.sliding_window = 70;
    if (kind == 2) op.shape.page_tokens = 16;
    if (kind == 3) op.shape.flush_block = 10;
    if (kind == 4) op.shape.recent_tokens = op.shape.sinks = 0;
    if (kind == 5) op.shape.sink_logits = true;
    AttentionData each = data(op, 61 + at(kind));
    if (op.shape.recent_tokens > 0) each.recent_counts = {20, 5, 0};
    const AttentionOutput output = kernel(op, 1 + kind % 3).run(each);
    EXPECT_TRUE(is_right(reference_of(op, each), output, op.dtype));
  }
}

// A draft of a tree gives what it gives behind its ancestors alone: as the last of a chain of them,
// with the same window and the same tokens in full precision.
TEST_P(Trees, EachDraftIsTheLastOfAChain) {
  for (const int window : {0, 75}) {
    AttentionDecode op = problem();
    op.shape.sliding_window = window;
    AttentionData tree = data(op, 67);
    tree.recent_counts = {8, 30, 2};
    const AttentionOutput output = kernel(op, 2).run(tree);
    const std::size_t row_keys = at(op.shape.kv_heads * op.shape.head_dim);
    const std::size_t row_query = at(op.shape.query_heads * op.shape.head_dim);
    for (const std::int64_t number : {3, GetParam().drafts - 1}) {
      AttentionData chain = tree;
      chain.tree_masks.clear();
      chain.queries.clear();
      chain.new_keys.clear();
      chain.new_values.clear();
      chain.query_start = {0};
      std::vector<std::int64_t> lasts, rows;
      for (std::int64_t b = 0; b < tree.batch; ++b) {
        const std::int64_t first = tree.query_rows(b).first;
        for (std::int64_t draft = 0; draft <= number; ++draft) {
          const bool seen = (tree.tree_masks[at(first + number)] >> draft & 1) != 0;
          if (draft == number || seen) rows.push_back(first + draft);
        }
        lasts.push_back(std::ssize(rows) - 1);
        chain.query_start.push_back(static_cast<std::int32_t>(rows.size()));
      }
      const auto take = [&](const std::vector<std::uint16_t>& from, std::vector<std::uint16_t>& to,
                            std::size_t elements) {
        for (const std::int64_t row : rows) {
          const auto begin = from.begin() + row * static_cast<std::ptrdiff_t>(elements);
          to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(elements));
        }
      };
      take(tree.queries, chain.queries, row_query);
      take(tree.new_keys, chain.new_keys, row_keys);
      take(tree.new_values, chain.new_values, row_keys);
      AttentionDecode plain = op;
      plain.shape.tree_mask = false;
      plain.shape.query_tokens = kMostTreeTokens;
      const AttentionResult of_chain = reference_of(plain, chain);
      for (std::int64_t b = 0; b < tree.batch; ++b) {
        SCOPED_TRACE(testing::Message()
                     << "window " << window << ", draft " << number << " of " << b);
        const std::int64_t row = tree.query_rows(b).first + number;
        const auto part = [](const auto& all, std::int64_t place, std::size_t count) {
          const auto begin = all.begin() + place * static_cast<std::ptrdiff_t>(count);
          return std::decay_t<decltype(all)>(begin, begin + static_cast<std::ptrdiff_t>(count));
        };
        const AttentionResult expected{part(of_chain.out, lasts[at(b)], row_query),
                                       part(of_chain.lse, lasts[at(b)], at(op.shape.query_heads))};
        const AttentionOutput given{part(output.out, row, row_query),
                                    part(output.lse, row, at(op.shape.query_heads))};
        EXPECT_TRUE(is_right(expected, given, op.dtype));
      }
    }
  }
}

// A chain as a tree gives what a chain gives.
TEST_P(Trees, ChainsAreQueryTokensInOrder) {
  if (GetParam().drafts > kMostQueryTokens) GTEST_SKIP() << "more than a chain may have";
  AttentionDecode op = problem();
  AttentionData tree = data(op, 71);
  for (std::int64_t b = 0; b < tree.batch; ++b) {
    const auto [first, last] = tree.query_rows(b);
    for (std::int64_t row = first; row < last; ++row) {
      tree.tree_masks[at(row)] = (std::int64_t{2} << (row - first)) - 1;
    }
  }
  const AttentionOutput output = kernel(op, 2).run(tree);
  op.shape.tree_mask = false;
  AttentionData chain = tree;
  chain.tree_masks.clear();
  const AttentionResult reference = reference_of(op, chain);
  EXPECT_TRUE(is_right(reference, output, op.dtype));
  EXPECT_TRUE(is_right(reference, kernel(op, 2).run(chain), op.dtype));
}

// Bits of a draft itself and of later ones do not count: a launch on a device cannot refuse them.
TEST_P(Trees, BitsThatDoNotCountChangeNothing) {
  const AttentionDecode op = problem();
  AttentionData each = data(op, 73);
  Kernel attention = kernel(op, 2);
  const AttentionOutput before = attention.run(each);
  for (std::int64_t b = 0; b < each.batch; ++b) {
    const auto [first, last] = each.query_rows(b);
    for (std::int64_t row = first; row < last; ++row) {
      const auto own = static_cast<std::uint64_t>(1) << (row - first);
      std::int64_t& mask = each.tree_masks[at(row)];
      mask = static_cast<std::int64_t>(static_cast<std::uint64_t>(mask) ^ ~(own - 1));
    }
  }
  expect_same_bits(before, attention.run(each));
}

// What a draft does not see does not change a bit, even the largest numbers.
TEST_P(Trees, OtherBranchesDoNotChangeABit) {
  const AttentionDecode op = problem();
  AttentionData each = data(op, 79);
  const std::int64_t drafts = GetParam().drafts;
  for (std::int64_t row = 0; row < each.query_rows(); ++row) {  // two stars: even ones, odd ones
    const std::int64_t number = row % drafts;
    each.tree_masks[at(row)] = (std::int64_t{1} << number) | std::int64_t{1} << number % 2;
  }
  each.query_start = {0, static_cast<std::int32_t>(drafts), static_cast<std::int32_t>(2 * drafts),
                      static_cast<std::int32_t>(3 * drafts)};
  Kernel attention = kernel(op, 2);
  const AttentionOutput before = attention.run(each);
  const auto elements = static_cast<std::ptrdiff_t>(op.shape.kv_heads * op.shape.head_dim);
  for (std::int64_t row = 0; row < each.query_rows(); ++row) {
    if (row % drafts % 2 == 0) continue;
    std::fill_n(each.new_keys.begin() + row * elements, elements, 0x7bff);
    std::fill_n(each.new_values.begin() + row * elements, elements, 0x7bff);
  }
  const AttentionOutput output = attention.run(each);
  const auto row_elements = static_cast<std::ptrdiff_t>(op.shape.query_heads * op.shape.head_dim);
  for (std::int64_t row = 0; row < each.query_rows(); ++row) {
    const auto begin = row * row_elements;
    const bool same =
        std::equal(before.out.begin() + begin, before.out.begin() + begin + row_elements,
                   output.out.begin() + begin);
    EXPECT_EQ(same, row % drafts % 2 == 0) << row;
  }
}

TEST_P(Trees, FaultsAreFound) {
  AttentionDecode op = problem();
  const bool several = GetParam().heads_per_block > op.group();
  std::vector<Fault> faults{{"& (own - 1)) | own", "& (own - 1))"},
                            {"& (own - 1)) | own", ") | own"},
                            {"u64{1} << (number + held)", "u64{1} << held"},
                            {"masks + 2 * held + 1", "masks + 2 * held"},
                            {"draft < 0 || (path >> draft % 64 & 1) != 0", "true"},
                            {"args.tree_mask + 2 * token.row", "args.tree_mask"},
                            {"token.cached + ones_of(path(query_token))", "token.cached + 1"}};
  if (several) {
    faults.push_back({"codes_end_at(token.cached + 1)", "codes_end_at(seen)"});
    faults.push_back({"recent_tokens - (seen - sees)", "recent_tokens"});
  }
  if (GetParam().drafts < kMostTreeTokens)
    faults.erase(faults.begin() + 3);  // high words are zeros
  AttentionData each = data(op, 83);
  each.lengths = {150, 0, 31};
  each.recent_counts = {20, 5, 9};
  const AttentionResult reference = reference_of(op, each);
  expect_faults_found(op, plan(op, 2), faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(each), op.dtype);
  });
}

INSTANTIATE_TEST_SUITE_P(Dataflows, Trees, testing::ValuesIn(tree_cases()),
                         [](const auto& each) { return test_name(each.param.name); });

// Tiles of which a draft sees no token, before one that it sees: no cache, and roots alone.
TEST(TreesOfRoots, TilesThatAreHiddenWholeCountForNothing) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .tokens = 80};
  op.shape.query_tokens = 40;
  op.shape.tree_mask = true;
  op.keys = op.values = {.vector_size = 4, .index_bits = 6};
  auto plan = rules_plan<AttentionSimt>(op, sweep_gpu());
  plan.threads = 64;
  plan.tile_tokens = 16;
  plan.splits = 1;
  const Verdict verdict = check(plan, op, sweep_gpu());
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  AttentionData data = make_attention_data(op, {.seed = 89});
  data.lengths = {0, 5};
  for (std::int64_t& mask : data.tree_masks) mask = 0;
  const AttentionResult reference = reference_of(op, data);
  Kernel attention(*sweep_backend(), op, plan, sweep_gpu());
  EXPECT_TRUE(is_right(reference, attention.run(data), op.dtype));
  const Fault fault{"base = highest == -infinity() ? 0.0f : highest", "base = highest"};
  expect_faults_found(op, plan, std::span(&fault, 1), [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

}  // namespace
}  // namespace vqgen::test

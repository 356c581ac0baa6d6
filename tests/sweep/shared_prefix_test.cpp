// A prefix that sequences share, which all query tokens of a call see, in each dataflow of
// attention_decode that has several query tokens: against the reference, laws, and seeded faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct PrefixCase {
  const char* name;
  Plan dataflow;
  int heads_per_block;  // of mma and int8_mma; with more than 2, of several query tokens
  int query_tokens;
};

std::vector<PrefixCase> prefix_cases() {
  return {{"simt", AttentionSimt{}, 0, 7},
          {"lut", AttentionLut{}, 0, 7},
          {"channels", AttentionChannels{}, 0, 7},
          {"mma", AttentionMma{}, 2, 7},
          {"mma, several", AttentionMma{}, 8, 7},
          {"mma, 64", AttentionMma{}, 16, 64},
          {"mma, 32 heads", AttentionMma{}, 32, 64},
          {"int8_mma", AttentionInt8Mma{}, 2, 7},
          {"int8_mma, several", AttentionInt8Mma{}, 6, 7},
          {"int8_mma, 64", AttentionInt8Mma{}, 8, 64}};
}

std::size_t place(std::int64_t number) { return static_cast<std::size_t>(number); }

AttentionDecode prefix_problem(int query_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 220,
              .query_tokens = query_tokens};
  op.shape.shared_prefix = query_tokens > 1;
  op.keys = find_format("vecinfer-d4b8i8", "test");
  op.values = for_values(op.keys);
  return op;
}

class SharedPrefix : public SweepTest<testing::TestWithParam<PrefixCase>> {
 protected:
  static AttentionDecode problem() { return prefix_problem(GetParam().query_tokens); }
  static Plan plan(const AttentionDecode& op, int splits) {
    Plan plan = narrow_plan(GetParam().dataflow, op, sweep_gpu(), splits);
    const auto change_heads = [&](auto& own) { own.heads_per_block = GetParam().heads_per_block; };
    change_own(plan, [&](AttentionMma& own) {
      change_heads(own);
      if (own.heads_per_block > 16) own.step_tokens = 16;
    });
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

TEST_P(SharedPrefix, GivesWhatTheReferenceGives) {
  for (const int kind : a_third({0, 1, 2, 3, 4, 5})) {
    SCOPED_TRACE(kind);
    AttentionDecode op = problem();
    op.dtype = kind % 2 == 0 ? DType::f16 : DType::bf16;
    if (kind == 1) op.shape.logit_softcap = 3.5;
    if (kind == 2) op.shape.page_tokens = 16;
    if (kind >= 3) {
      op.keys.smooth = op.keys.hadamard = false;
      set_basis(op, kind - 2);
    }
    AttentionData each = data(op, 61 + place(kind));
    if (kind == 0) each.lengths = {1, 220, 33};
    Plan own = plan(op, 1 + kind % 3);
    if (kind % 3 > 0) {
      change_own(own, [](AttentionMma& mma) { mma.schedule = Schedule::balanced; });
      change_own(own, [](AttentionInt8Mma& bytes) { bytes.schedule = Schedule::balanced; });
    }
    Kernel attention(*sweep_backend(), op, own, sweep_gpu());
    EXPECT_TRUE(is_right(reference_of(op, each), attention.run(each), op.dtype));
  }
}

// Each query token gives what a call with one query token of the sequence gives.
TEST_P(SharedPrefix, EachQueryTokenSeesAllOfIt) {
  const AttentionDecode op = problem();
  AttentionData shared = data(op, 67);
  const AttentionOutput output = kernel(op, 2).run(shared);
  const AttentionDecode single = prefix_problem(1);
  const auto elements = static_cast<std::ptrdiff_t>(op.shape.query_heads * op.shape.head_dim);
  for (const std::int64_t number : {0, GetParam().query_tokens - 1}) {
    AttentionData one = shared;
    one.shared_prefix = false;
    one.query_start.clear();
    one.queries.clear();
    AttentionOutput given;
    for (std::int64_t b = 0; b < shared.batch; ++b) {
      const auto [first, last] = shared.query_rows(b);
      const std::int64_t row = first + number;
      const bool real = row < last;
      if (!real) one.lengths[place(b)] = 0;
      const auto from = shared.queries.begin() + (real ? row : 0) * elements;
      one.queries.insert(one.queries.end(), from, from + elements);
      for (std::int64_t i = 0; i < elements; ++i) {
        given.out.push_back(real ? output.out[place(row * elements + i)] : std::uint16_t{0});
      }
      for (std::int64_t h = 0; h < op.shape.query_heads; ++h) {
        given.lse.push_back(real ? output.lse[place(row * op.shape.query_heads + h)]
                                 : -std::numeric_limits<float>::infinity());
      }
    }
    SCOPED_TRACE(number);
    EXPECT_TRUE(is_right(reference_of(single, one), given, op.dtype));
  }
}

TEST_P(SharedPrefix, FaultsAreFound) {
  const AttentionDecode op = problem();
  std::vector<Fault> faults{
      {"shared_prefix ? length : newest", "shared_prefix ? newest : length"},
      {"row = i64{first} + number", "row = i64{first}"},
      {"shared_prefix ? length : newest", "shared_prefix ? length / 2 : newest"}};
  if (GetParam().heads_per_block > op.group())
    faults.push_back({"heads = count * kGroup", "heads = kGroup"});
  const AttentionData each = data(op, 83);
  const AttentionResult reference = reference_of(op, each);
  expect_faults_found(op, plan(op, 2), faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(each), op.dtype);
  });
}

INSTANTIATE_TEST_SUITE_P(Dataflows, SharedPrefix, testing::ValuesIn(prefix_cases()),
                         [](const auto& each) { return test_name(each.param.name); });

// Sequences that begin with the same tokens: attention over these, once for all, and over each
// one's own tokens, merged. One sequence has no tokens of its own, and one prefix no tokens.
class Cascade : public SweepTest<> {
 protected:
  static constexpr int kSequences = 5;

  static AttentionDecode whole_problem() {
    AttentionDecode op = prefix_problem(1);
    op.shape.batch = kSequences;
    return op;
  }
  // Sequences with the first `prefix` tokens of the first.
  static AttentionData whole_data(std::int64_t prefix, std::uint64_t seed) {
    AttentionData data = make_attention_data(whole_problem(), {.seed = seed});
    data.lengths = {220, static_cast<std::int32_t>(prefix), 180, 137, 219};
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
      const std::int64_t words = prefix * tensor->row_words;
      const std::int64_t sequence = tensor->heads * tensor->head_words();
      for (std::int64_t at = sequence; at < std::ssize(tensor->codes); at += tensor->head_words()) {
        const auto first = tensor->codes.begin() + at % sequence;
        std::copy(first, first + words, tensor->codes.begin() + at);
      }
    }
    return data;
  }
  // The prefix as one sequence, whose query tokens are those of all, in reverse order if asked.
  static AttentionData prefix_data(const AttentionData& whole, std::int64_t prefix, bool reversed) {
    AttentionData data = whole;
    data.batch = 1;
    data.shared_prefix = true;
    data.query_start = {0, kSequences};
    data.lengths = {static_cast<std::int32_t>(prefix)};
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
      tensor->batch = 1;
      tensor->codes.resize(tensor->codes.size() / kSequences);
    }
    if (reversed) turn(data.queries);
    return data;
  }
  template <class T>
  static void turn(std::vector<T>& rows) {
    const auto elements = std::ssize(rows) / kSequences;
    std::vector<T> from = rows;
    for (int row = 0; row < kSequences; ++row) {
      std::copy_n(from.begin() + row * elements, elements,
                  rows.begin() + (kSequences - 1 - row) * elements);
    }
  }
  // The tokens behind the prefix, from token 0 on.
  static AttentionData own_data(const AttentionData& whole, std::int64_t prefix) {
    AttentionData data = whole;
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
      const std::int64_t words = tensor->head_words();
      for (auto head = tensor->codes.begin(); head != tensor->codes.end(); head += words) {
        std::rotate(head, head + prefix * tensor->row_words, head + words);
      }
    }
    for (std::int32_t& length : data.lengths) length -= static_cast<std::int32_t>(prefix);
    return data;
  }
  static Kernel kernel(const Problem& op) {
    return Kernel(*sweep_backend(), op, choose(op, sweep_gpu()), sweep_gpu());
  }
  static AttentionDecode prefix_op() {
    AttentionDecode op = prefix_problem(kSequences);
    op.shape.batch = 1;
    return op;
  }
  static AttentionOutput merged(const AttentionOutput& first, const AttentionOutput& second) {
    AttentionMerge op;
    op.shape = {.rows = kSequences, .heads = 4, .head_dim = 64, .parts = 2};
    MergeData data;
    data.rows = kSequences;
    data.heads = 4;
    data.head_dim = 64;
    data.parts = {{first.out, first.lse}, {second.out, second.lse}};
    return kernel(op).run(data);
  }
  static bool is_whole(const AttentionResult& right, const AttentionOutput& output) {
    constexpr double kRoundings = 2;  // of the parts and of the result
    return compare(right.out, output.out, DType::f16, kRoundings).ok &&
           compare_lse(right.lse, output.lse, DType::f16, kRoundings).ok;
  }
};

TEST_F(Cascade, APrefixAndTheRestAreTheWhole) {
  Kernel own = kernel(whole_problem()), shared = kernel(prefix_op());
  for (const std::int64_t prefix : {137, 64, 0}) {
    SCOPED_TRACE(prefix);
    const AttentionData whole = whole_data(prefix, 97);
    const AttentionResult right = reference_of(whole_problem(), whole);
    const AttentionOutput rest = own.run(own_data(whole, prefix));
    const AttentionOutput first = shared.run(prefix_data(whole, prefix, false));
    EXPECT_TRUE(is_whole(right, merged(first, rest)));
    AttentionOutput reversed = shared.run(prefix_data(whole, prefix, true));
    turn(reversed.out);
    turn(reversed.lse);
    EXPECT_TRUE(is_whole(right, merged(reversed, rest)));
  }
}

// The checkers find a prefix that is counted twice, own tokens that begin one page too late, and
// results of another sequence.
TEST_F(Cascade, WrongSpansAreFound) {
  constexpr std::int64_t kPrefix = 128, kPage = 16;
  Kernel own = kernel(whole_problem()), shared = kernel(prefix_op());
  const AttentionData whole = whole_data(kPrefix, 101);
  const AttentionResult right = reference_of(whole_problem(), whole);
  const AttentionOutput rest = own.run(own_data(whole, kPrefix));
  const AttentionOutput first = shared.run(prefix_data(whole, kPrefix, false));
  EXPECT_TRUE(is_whole(right, merged(first, rest)));
  EXPECT_FALSE(is_whole(right, merged(first, own.run(whole))));
  EXPECT_FALSE(is_whole(right, merged(first, first)));
  AttentionData late = own_data(whole, kPrefix + kPage);
  late.lengths[1] = 0;
  EXPECT_FALSE(is_whole(right, merged(first, own.run(late))));
  AttentionOutput reversed = first;
  turn(reversed.out);
  turn(reversed.lse);
  EXPECT_FALSE(is_whole(right, merged(reversed, rest)));
}

}  // namespace
}  // namespace vqgen::test

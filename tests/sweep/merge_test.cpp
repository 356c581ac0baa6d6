// attention_merge beside the sweep: parts of a sequence's tokens become attention over all of them,
// an empty part changes no bit, the order of parts changes only rounding, and NaN stays in its row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

AttentionMerge merge_problem(int parts = 3) {
  AttentionMerge op;
  op.shape = {.rows = 7, .heads = 4, .head_dim = 80, .parts = parts};
  return op;
}

class Merge : public SweepTest<> {
 protected:
  static Kernel kernel(const Problem& op) {
    return Kernel(*sweep_backend(), op, choose(op, sweep_gpu()), sweep_gpu());
  }
  static void expect_right(const AttentionResult& right, const AttentionOutput& output, DType dtype,
                           double tolerances = 1) {
    EXPECT_TRUE(compare(right.out, output.out, dtype, tolerances).ok);
    EXPECT_TRUE(compare_lse(right.lse, output.lse, dtype, tolerances).ok);
  }
};

// Bits of both, of which -0 is not 0.
void expect_part(const AttentionOutput& output, const MergePart& part) {
  expect_same_bits(output, {part.out, part.lse});
}

// attention_decode over the first tokens and over the rest; the queries know only the lengths of
// their caches.
TEST_F(Merge, PartsOfASequenceBecomeTheWhole) {
  AttentionDecode attention;
  attention.shape = {
      .batch = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .tokens = 96, .sinks = 0};
  attention.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  attention.values = attention.keys;
  const AttentionData whole = make_attention_data(attention, {.seed = 61});
  constexpr std::int64_t kFirst = 40;
  // The rest of the tokens moved to the front: rows of codes are whole words.
  AttentionData rest = whole;
  for (QuantizedTensor* tensor : {&rest.keys, &rest.values}) {
    const std::int64_t words = tensor->head_words();
    const std::int64_t row = words / attention.shape.tokens;
    for (auto head = tensor->codes.begin(); head != tensor->codes.end(); head += words) {
      std::rotate(head, head + kFirst * row, head + words);
    }
  }
  AttentionData first = whole;
  first.lengths.assign(3, kFirst);
  rest.lengths.assign(3, 96 - kFirst);
  Kernel attend(*sweep_backend(), attention, choose(attention, sweep_gpu()), sweep_gpu());

  AttentionMerge op;
  op.shape = {.rows = 3, .heads = 4, .head_dim = 64, .parts = 2};
  MergeData data;
  data.rows = 3;
  data.heads = 4;
  data.head_dim = 64;
  for (const AttentionData* each : {&first, &rest}) {
    AttentionOutput part = attend.run(*each);
    data.parts.push_back({std::move(part.out), std::move(part.lse)});
  }
  const AttentionResult right = reference_of(attention, whole);
  constexpr double kRoundings = 2;  // of the parts and of the result
  expect_right(right, kernel(op).run(data), op.dtype, kRoundings);
  std::swap(data.parts[0].lse, data.parts[1].lse);  // other weights give another result
  EXPECT_FALSE(compare(right.out, kernel(op).run(data).out, op.dtype, kRoundings).ok);
}

TEST_F(Merge, AnEmptyPartChangesNoBit) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    AttentionMerge op = merge_problem();
    op.dtype = dtype;
    Kernel merge = kernel(op);
    for (std::size_t alone = 0; alone < 3; ++alone) {
      MergeData data = make_merge_data(op, {.seed = 62 + alone});
      MergePart& part = data.parts[alone];
      part.lse[0] = -1e30f;
      part.lse[1] = 1e30f;
      part.out[5] = 0x8000;  // -0
      part.out[6] = 1;       // the least
      for (std::size_t i = 0; i < 3; ++i) {
        if (i == alone) continue;
        std::fill(data.parts[i].lse.begin(), data.parts[i].lse.end(), -kInf);
        std::fill(data.parts[i].out.begin(), data.parts[i].out.end(),
                  element_from_float(dtype, kQuietNan));
      }
      expect_part(merge.run(data), part);
    }
  }
}

TEST_F(Merge, TheOrderOfPartsIsRounding) {
  const AttentionMerge op = merge_problem(5);
  Kernel merge = kernel(op);
  MergeData data = make_merge_data(op, {.seed = 63, .lengths = LengthPattern::ragged});
  data.in_place = -1;
  const AttentionResult right = reference_merge(data);
  for (int turn = 0; turn < 5; ++turn) {
    std::rotate(data.parts.begin(), data.parts.begin() + 1, data.parts.end());
    expect_right(right, merge.run(data), op.dtype);
  }
}

TEST_F(Merge, InPlaceOfAPartGivesTheSameBits) {
  const AttentionMerge op = merge_problem();
  Kernel merge = kernel(op);
  MergeData data = make_merge_data(op, {.seed = 64, .lengths = LengthPattern::ragged});
  data.in_place = -1;
  const AttentionOutput apart = merge.run(data);
  for (data.in_place = 0; data.in_place < 3; ++data.in_place) {
    expect_same_bits(apart, merge.run(data));
  }
}

TEST_F(Merge, AllEmptyGivesZerosAndMinusInfinity) {
  const AttentionMerge op = merge_problem();
  MergeData data = make_merge_data(op, {.seed = 65});
  for (MergePart& each : data.parts) {
    std::fill(each.lse.begin(), each.lse.end(), -kInf);
    std::fill(each.out.begin(), each.out.end(), element_from_float(op.dtype, kQuietNan));
  }
  const MergePart none{std::vector<std::uint16_t>(data.parts[0].out.size()),
                       std::vector<float>(data.parts[0].lse.size(), -kInf)};
  expect_part(kernel(op).run(data), none);
}

// NaN in a part that counts, and invalid log-sum-exps, reach only their row and head.
TEST_F(Merge, NanStaysInItsRowAndHead) {
  const AttentionMerge op = merge_problem();
  const auto dim = static_cast<std::size_t>(op.shape.head_dim);
  Kernel merge = kernel(op);
  const MergeData sound = make_merge_data(op, {.seed = 66});
  const AttentionOutput right = merge.run(sound);
  for (const float lse : {kQuietNan, kInf}) {
    MergeData data = sound;
    constexpr std::size_t kBad = 9;
    constexpr std::size_t kBadChannel = 20 * 80 + 33;
    data.parts[1].lse[kBad] = lse;
    data.parts[2].out[kBadChannel] = element_from_float(op.dtype, kQuietNan);
    const AttentionOutput output = merge.run(data);
    for (std::size_t i = 0; i < right.lse.size(); ++i) {
      if (i == kBad) {
        EXPECT_TRUE(std::isnan(output.lse[i]));
      } else {
        EXPECT_EQ(output.lse[i], right.lse[i]) << i;
      }
    }
    for (std::size_t i = 0; i < right.out.size(); ++i) {
      if (i / dim == kBad || i == kBadChannel) {
        EXPECT_TRUE(std::isnan(element_to_float(op.dtype, output.out[i]))) << i;
      } else {
        EXPECT_EQ(output.out[i], right.out[i]) << i;
      }
    }
    const AttentionResult reference = reference_merge(data);
    EXPECT_TRUE(std::isnan(reference.lse[kBad]));
    EXPECT_TRUE(std::isnan(reference.out[kBad * dim]));
    EXPECT_TRUE(std::isnan(reference.out[kBadChannel]));
  }
}

// Each fault changes one place of the kernel's text.
TEST_F(Merge, TheReferenceFindsWhatWrongKernelsWrite) {
  const AttentionMerge op = merge_problem();
  MergeData data = make_merge_data(op, {.seed = 67, .lengths = LengthPattern::ragged});
  data.in_place = -1;
  const AttentionResult reference = reference_merge(data);
  const Plan plan = choose(op, sweep_gpu());
  const Fault faults[] = {
      {"if (lse[i] == -infinity()) continue;", ""},  // NaN of a part that does not count
      {"counts ? exp2_approx((lse[i] - most_) * kLog2E) : 0.0f",
       "exp2_approx((lse[i] - most_) * kLog2E)"},
      {"(lse[i] - most_) * kLog2E", "(lse[i] - most_)"},
      {"most_ = lse[i] > most_ ? lse[i] : most_", "most_ = 0.0f"},  // sums that overflow or vanish
      {"1.0f / total", "1.0f"},
      {"most_ + kLn2 * log2_approx(total)", "most_"},
      {"args.lses[i] + number", "args.lses[i]"},  // another row and head
      {"args.lses[i] + number", "args.lses[0] + number"},
      {"args.outs[i] + element", "args.outs[0] + element"},
      {"i64{args.rows} * kConfig.heads", "i64{args.rows}"},
  };
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

}  // namespace
}  // namespace vqgen::test

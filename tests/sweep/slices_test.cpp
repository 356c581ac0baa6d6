// Dataflow sliced_codebook: blocks that hold slices of entries give the results of whole entries,
// for any number of slices, chunks, stages and rows; x as integers loses no row and no NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Slices : public SweepTest<testing::TestWithParam<bool>> {  // int8 entries
 protected:
  // 37 outputs, and columns that end within a step.
  Gemv problem(int bits, int rows = 3, int in_features = 1160) const {
    Gemv op;
    op.shape = {.rows = rows, .out_features = 37, .in_features = in_features};
    op.weights = {.vector_size = 8, .index_bits = bits};
    if (GetParam()) {
      op.weights.entry_type = EntryType::int8;
      op.weights.stage_scales = true;
    }
    return op;
  }

  // A block of 2 warps with a slice of `elements`.
  static LinearSlicedCodebook plan(const Linear& op, int columns, int elements) {
    return {.threads = 64,
            .outputs_per_warp = 8,
            .columns_per_block = columns,
            .entry_slices = op.weights.vector_size / elements,
            .rows_per_block = 4};
  }

  static std::vector<std::uint16_t> run(const Linear& op, const LinearSlicedCodebook& plan,
                                        const LinearData& data) {
    const Problem problem = Gemv{op};
    const Verdict verdict = check(plan, problem, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), problem, plan, sweep_gpu()).run(data);
  }

  static void expect_right(const Linear& op, const LinearSlicedCodebook& plan,
                           const LinearData& data) {
    const Comparison compared = compare(reference_linear(data), run(op, plan, data), op.dtype);
    EXPECT_TRUE(compared.ok) << compared.rel_err << ", slices " << plan.entry_slices
                             << ", chunks of " << plan.columns_per_block;
  }
};

TEST_P(Slices, OfAnyWidthAndChunksAreRight) {
  const Gemv op = problem(8);
  const LinearData data = make_linear_data(op, {.seed = 21});
  for (const int elements : {2, 4, 8}) {
    for (const int chunk : {1024, 2048}) expect_right(op, plan(op, chunk, elements), data);
  }
  if (!GetParam()) expect_right(op, plan(op, 1024, 1), data);
}

TEST_P(Slices, OfStagesApartAreRight) {
  Gemv op = problem(8);
  op.weights.num_codebooks = 2;
  op.weights.stage_scales = true;
  const LinearData data = make_linear_data(op, {.seed = 22});
  expect_right(op, plan(op, 512, 2), data);
  op.weights.num_codebooks = 4;
  expect_right(op, plan(op, 1280, 8), make_linear_data(op, {.seed = 23}));
}

TEST_P(Slices, OfCodesOf16BitsAndWideLoadsAreRight) {
  if (sweep_gpu().shared_bytes_per_block < 160 * 1024) {
    GTEST_SKIP() << "128 KiB of slices do not fit a block of this GPU";
  }
  const Gemv op = problem(16, 5, 1056);  // rows of 66 words
  const LinearData data = make_linear_data(op, {.seed = 24});
  for (const int words : {1, 2}) {
    LinearSlicedCodebook wide = plan(op, 1024, GetParam() ? 2 : 1);  // 128 KiB of 65536 entries
    wide.code_words = words;
    wide.combine = Combine::last_block;
    expect_right(op, wide, data);
  }
  const auto chosen = rules_plan<LinearSlicedCodebook>(op, sweep_gpu());
  EXPECT_EQ(chosen.code_words, 2);
  expect_right(op, chosen, data);
}

TEST_P(Slices, OfBf16AndEntriesOf4AreRight) {
  Gemv op = problem(8);
  op.dtype = DType::bf16;
  op.weights.vector_size = 4;
  const LinearData data = make_linear_data(op, {.seed = 25});
  for (const int elements : {2, 4}) expect_right(op, plan(op, 512, elements), data);
}

// x is scaled by each row's largest magnitude: a row of much smaller numbers is as exact, and zeros
// stay zeros.
TEST_P(Slices, RowsOfDifferentSizeAreEachExact) {
  const Gemv op = problem(8);
  LinearData data = make_linear_data(op, {.seed = 26});
  const auto columns = static_cast<std::size_t>(op.shape.in_features);
  for (std::size_t i = 0; i < columns; ++i) {
    const float value = element_to_float(op.dtype, data.x[columns + i]);
    data.x[columns + i] = element_from_float(op.dtype, value / 1024);
    data.x[2 * columns + i] = 0;
  }
  const std::vector<std::uint16_t> y = run(op, plan(op, 2048, 2), data);
  const std::vector<double> reference = reference_linear(data);
  const auto outputs = static_cast<std::size_t>(op.shape.out_features);
  double error = 0;
  double size = 0;
  for (std::size_t i = outputs; i < 2 * outputs; ++i) {
    const double value = element_to_float(op.dtype, y[i]);
    error += (value - reference[i]) * (value - reference[i]);
    size += reference[i] * reference[i];
    EXPECT_EQ(element_to_float(op.dtype, y[i + outputs]), 0.0f);
  }
  EXPECT_GT(size, 0.0);
  EXPECT_LE(std::sqrt(error / size), 1e-3);
}

// The longest chunk of whole entries: 64 sub-vectors per lane, all of the largest magnitude.
TEST_P(Slices, SumsOfTheLargestNumbersDoNotOverflow) {
  Gemv op = problem(8, 1, 16384);
  op.weights.stage_scales = true;
  LinearData data = make_linear_data(op, {.seed = 28});
  for (std::uint16_t& bits : data.weights.codebooks) bits = element_from_float(op.dtype, 127.0f);
  for (float& scale : data.weights.stage_scales) scale = 0x1p-14f;
  for (const float sign : {1.0f, -1.0f}) {
    for (std::uint16_t& bits : data.x) bits = element_from_float(op.dtype, sign);
    for (const std::uint16_t bits : run(op, plan(op, 16384, 8), data)) {
      EXPECT_NEAR(element_to_float(op.dtype, bits), sign * 127.0f, 0.1f);
    }
  }
}

TEST_P(Slices, ARowWithWhatIsNoNumberHasNoNumbersAndTheOthersAreAsBefore) {
  const Gemv op = problem(8);
  const LinearData data = make_linear_data(op, {.seed = 27});
  const LinearSlicedCodebook two = plan(op, 2048, 2);
  const std::vector<std::uint16_t> before = run(op, two, data);
  const auto columns = static_cast<std::size_t>(op.shape.in_features);
  const auto outputs = static_cast<std::size_t>(op.shape.out_features);
  LinearData with = data;
  // A NaN in the first slice: blocks of other slices do not see it, but their sums are added to it.
  with.x[columns + 16] = element_from_float(op.dtype, std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::uint16_t> after = run(op, two, with);
  for (std::size_t i = 0; i < 3 * outputs; ++i) {
    if (i / outputs == 1) {
      EXPECT_TRUE(std::isnan(element_to_float(op.dtype, after[i]))) << i;
    } else {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
  with.x[columns + 16] = element_from_float(op.dtype, std::numeric_limits<float>::infinity());
  const std::vector<std::uint16_t> infinite = run(op, two, with);
  for (std::size_t i = outputs; i < 2 * outputs; ++i) {
    const float value = element_to_float(op.dtype, infinite[i]);
    EXPECT_TRUE(GetParam() ? std::isnan(value) : !std::isfinite(value)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Entries, Slices, testing::Bool(),
                         [](const auto& test) { return test.param ? "int8" : "element"; });

}  // namespace
}  // namespace vqgen::test

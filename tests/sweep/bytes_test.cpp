// Dataflow int8_mma: integer products are as exact as those of 16-bit elements, whatever x is; rows
// are independent; kernels that drop a part are found.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "generator/generate.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// The element type, and who converts x to bytes: all warps, the pre-pass, or two producer warps.
class Bytes : public SweepTest<testing::TestWithParam<std::tuple<DType, int>>> {
 protected:
  static DType dtype() { return std::get<0>(GetParam()); }
  static Linear problem(int rows = 8, int stages = 2, int in_features = 2080) {
    Linear op;
    op.dtype = dtype();
    op.shape = {.rows = rows, .out_features = 100, .in_features = in_features};
    op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = stages};
    with_integers(op.weights, true);
    op.weights.common_scale = true;
    return op;
  }
  static LinearInt8Mma plan(const Linear& op) {
    auto chosen = rules_plan<LinearInt8Mma>(Gemm{op}, sweep_gpu());
    chosen.prepack_x = std::get<1>(GetParam()) == 1 ? 1 : 0;
    if (std::get<1>(GetParam()) == 2) {
      chosen.producer_warps = 2;
      chosen.threads += 64;
    }
    return chosen;
  }

  static std::vector<std::uint16_t> run(const Linear& op, const LinearInt8Mma& plan,
                                        const LinearData& data) {
    const Verdict verdict = check(plan, Gemm{op}, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), Gemm{op}, plan, sweep_gpu()).run(data);
  }

  // The relative error of row `row`.
  static double error_of_row(const LinearData& data, const std::vector<std::uint16_t>& y,
                             std::size_t row) {
    const std::vector<double> reference = reference_linear(data);
    const std::size_t outputs =
        reference.size() / (data.x.size() / static_cast<std::size_t>(data.weights.columns));
    double error = 0, size = 0;
    for (std::size_t i = row * outputs; i < (row + 1) * outputs; ++i) {
      const double value = element_to_float(dtype(), y[i]);
      error += (value - reference[i]) * (value - reference[i]);
      size += reference[i] * reference[i];
    }
    return size > 0 ? std::sqrt(error / size) : error;
  }
  // The error of rounding y to the element type, and a little more.
  static double limit() { return dtype() == DType::f16 ? 3e-4 : 2.4e-3; }
};

TEST_P(Bytes, AnyNumberOfStagesIsExact) {
  for (const int stages : a_third({1, 2, 3, 4})) {
    for (const int rows : {1, 8}) {
      const Linear op = problem(rows, stages);
      const LinearData data = make_linear_data(op, {.seed = 31});
      const std::vector<std::uint16_t> y = run(op, plan(op), data);
      EXPECT_LE(error_of_row(data, y, 0), limit()) << stages << " stages, " << rows << " rows";
    }
  }
}

// A row has a scale per group of columns, so numbers of other sizes in other rows or columns cost
// no accuracy.
TEST_P(Bytes, RowsAndColumnsOfDifferentSizeAreEachExact) {
  const Linear op = problem();
  LinearData data = make_linear_data(op, {.seed = 32});
  const auto columns = static_cast<std::size_t>(op.shape.in_features);
  for (std::size_t i = 0; i < columns; ++i) {
    const auto scale = [&](std::size_t row, float by) {
      std::uint16_t& bits = data.x[row * columns + i];
      bits = element_from_float(op.dtype, by * element_to_float(op.dtype, bits));
    };
    scale(1, 1.0f / 64);
    scale(2, 0.0f);
    scale(3, i < 2048 ? 1.0f / 64 : 8.0f);  // another group
  }
  data.x[4 * columns + 5] = element_from_float(op.dtype, 400.0f);  // an outlier
  const std::vector<std::uint16_t> y = run(op, plan(op), data);
  for (const std::size_t row : {0u, 1u, 2u, 3u}) {
    EXPECT_LE(error_of_row(data, y, row), limit()) << row;
  }
  EXPECT_LE(error_of_row(data, y, 4), 2 * limit());
}

TEST_P(Bytes, SumsOfTheLargestNumbersDoNotOverflow) {
  for (const int stages : {1, 2}) {
    const Linear op = problem(8, stages, 4096);
    LinearData data = make_linear_data(op, {.seed = 33});
    const auto peak = static_cast<float>(op.weights.entry_peak());
    for (std::uint16_t& bits : data.weights.codebooks) bits = element_from_float(op.dtype, peak);
    for (float& scale : data.weights.stage_scales) scale = 0x1p-12f;
    for (const float sign : {1.0f, -1.0f}) {
      for (std::uint16_t& bits : data.x) bits = element_from_float(op.dtype, sign);
      for (const std::uint16_t bits : run(op, plan(op), data)) {
        EXPECT_NEAR(element_to_float(op.dtype, bits), sign * peak * static_cast<float>(stages),
                    0.6f);
      }
    }
  }
}

TEST_P(Bytes, ARowWithWhatIsNoNumberHasNoNumbersAndTheOthersAreAsBefore) {
  for (const int rows : {3, 8}) {
    const Linear op = problem(rows);
    const LinearData data = make_linear_data(op, {.seed = 34});
    const std::vector<std::uint16_t> before = run(op, plan(op), data);
    const auto columns = static_cast<std::size_t>(op.shape.in_features);
    const auto outputs = static_cast<std::size_t>(op.shape.out_features);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      LinearData with = data;
      with.x[columns + 700] = element_from_float(op.dtype, bad);
      const std::vector<std::uint16_t> after = run(op, plan(op), with);
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (i / outputs == 1) {
          EXPECT_TRUE(std::isnan(element_to_float(op.dtype, after[i]))) << i;
        } else {
          EXPECT_EQ(after[i], before[i]) << i;
        }
      }
    }
  }
}

// A sum's bits do not depend on its split's neighbours, and two runs are equal.
TEST_P(Bytes, ARunGivesTheSameBitsTwice) {
  const Linear op = problem(13);
  const LinearData data = make_linear_data(op, {.seed = 35});
  EXPECT_EQ(run(op, plan(op), data), run(op, plan(op), data));
}

const std::vector<std::string> kMakers{"", "Before", "Warps"};
INSTANTIATE_TEST_SUITE_P(Elements, Bytes,
                         testing::Combine(testing::Values(DType::f16, DType::bf16),
                                          testing::Values(0, 1, 2)),
                         [](const auto& each) {
                           return std::string(enum_name(std::get<0>(each.param))) +
                                  kMakers[static_cast<std::size_t>(std::get<1>(each.param))];
                         });

}  // namespace
}  // namespace vqgen::test

// Dataflow int8_wgmma, with x converted to bytes by the pre-pass or by each block: sums are as
// exact as with 16-bit elements, whatever the rows' sizes; rows are independent; splits without
// columns add nothing; kernels that drop a part are found.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "generator/generate.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Bytegroups : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    if (!sweep_gpu().warpgroup_products) GTEST_SKIP() << "no products of warp groups";
  }

  static Gemm problem(int rows, int in_features = 2080) {
    Gemm op;
    op.dtype = std::get<0>(GetParam());
    op.shape = {.rows = rows, .out_features = 100, .in_features = in_features};
    op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
    with_integers(op.weights, true);
    op.weights.common_scale = true;
    return op;
  }
  // A block has more rows than warps, or fewer.
  static LinearInt8Wgmma plan(int rows_per_block, int splits) {
    LinearInt8Wgmma plan{.threads = 256, .chunk_columns = 256, .splits = splits};
    plan.prepack_x = std::get<1>(GetParam());
    plan.rows_per_block = rows_per_block;
    plan.code_words = 2;
    plan.codebook = all_shared(256);
    if (splits > 1) plan.combine = Combine::cluster;
    return plan;
  }

  static std::vector<std::uint16_t> run(const Gemm& op, const LinearInt8Wgmma& plan,
                                        const LinearData& data) {
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  }
};

TEST_P(Bytegroups, RowsOfDifferentSizeAreEachExact) {
  for (const int rows : {8, 21}) {
    // With 9 chunks and 5 splits, each split has two chunks and the last has one.
    for (const int splits : {1, 5}) {
      const Gemm op = problem(rows);
      LinearData data = make_linear_data(op, {.seed = 61});
      const auto columns = static_cast<std::size_t>(op.shape.in_features);
      for (std::size_t i = 0; i < columns; ++i) {
        for (const auto& [row, by] : {std::pair{1u, 1.0f / 64}, std::pair{2u, 0.0f}}) {
          std::uint16_t& bits = data.x[row * columns + i];
          bits = element_from_float(op.dtype, by * element_to_float(op.dtype, bits));
        }
      }
      const std::vector<std::uint16_t> y = run(op, plan(rows == 8 ? 8 : 32, splits), data);
      const std::vector<double> reference = reference_linear(data);
      const auto outputs = static_cast<std::size_t>(op.shape.out_features);
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        double error = 0, size = 0;
        for (std::size_t i = row * outputs; i < (row + 1) * outputs; ++i) {
          const double value = element_to_float(op.dtype, y[i]);
          error += (value - reference[i]) * (value - reference[i]);
          size += reference[i] * reference[i];
        }
        // The error of rounding y to the element type, and a little more.
        EXPECT_LE(std::sqrt(error), (op.dtype == DType::f16 ? 3e-4 : 2.4e-3) * std::sqrt(size))
            << rows << " rows, " << splits << " splits, row " << row;
      }
    }
  }
}

// Runs of 128 columns: 2, 4 or more of a share are loaded at once. The last split has fewer runs
// than that.
TEST_P(Bytegroups, SharesOfFewAndManyRunsAreMultipliedWhole) {
  for (const auto& [columns, splits] :
       a_third({std::pair{256, 1}, std::pair{512, 2}, std::pair{704, 2}, std::pair{864, 2},
                std::pair{1312, 2}, std::pair{1536, 2}, std::pair{1632, 2}, std::pair{2048, 2}})) {
    for (const int rows : {5, 21}) {
      const Gemm op = problem(rows, columns);
      const LinearData data = make_linear_data(op, {.seed = 65});
      const std::vector<std::uint16_t> y = run(op, plan(rows == 5 ? 8 : 32, splits), data);
      EXPECT_TRUE(compare(reference_linear(data), y, op.dtype).ok)
          << columns << " columns, " << splits << " splits, " << rows << " rows";
    }
  }
}

TEST_P(Bytegroups, SplitsWithoutColumnsAddNothing) {
  const Gemm op = problem(9, 1056);  // 5 chunks; the last of 4 splits has none
  const LinearData data = make_linear_data(op, {.seed = 62});
  const std::vector<double> reference = reference_linear(data);
  EXPECT_TRUE(compare(reference, run(op, plan(16, 4), data), op.dtype).ok);
}

TEST_P(Bytegroups, ARowsNanStaysInIt) {
  for (const int splits : {1, 5}) {
    const Gemm op = problem(21);
    const LinearData data = make_linear_data(op, {.seed = 63});
    const std::vector<std::uint16_t> before = run(op, plan(32, splits), data);
    const auto columns = static_cast<std::size_t>(op.shape.in_features);
    const auto outputs = static_cast<std::size_t>(op.shape.out_features);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      LinearData with = data;
      with.x[7 * columns + 700] = element_from_float(op.dtype, bad);
      const std::vector<std::uint16_t> after = run(op, plan(32, splits), with);
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (i / outputs == 7) {
          EXPECT_TRUE(std::isnan(element_to_float(op.dtype, after[i]))) << i;
        } else {
          EXPECT_EQ(after[i], before[i]) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, Bytegroups,
                         testing::Combine(testing::Values(DType::f16, DType::bf16),
                                          testing::Values(0, 1)),
                         [](const auto& each) {
                           return std::string(enum_name(std::get<0>(each.param))) +
                                  (std::get<1>(each.param) == 1 ? "Before" : "");
                         });

}  // namespace
}  // namespace vqgen::test

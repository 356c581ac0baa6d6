// Dataflow wgmma_large_m: byte sums are as exact as products of elements, rows are independent, and
// kernels that lose a part of the codes or of x are found.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "generator/generate.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Rowgroups : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    if (!sweep_gpu().warpgroup_products) GTEST_SKIP() << "no products of warp groups";
  }

  static Gemm problem(int stages, bool bytes, int in_features = 2080) {
    Gemm op;
    op.dtype = GetParam();
    op.shape = {.rows = 33, .out_features = 100, .in_features = in_features};
    op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = stages};
    with_integers(op.weights, bytes);
    op.weights.common_scale = bytes;
    return op;
  }
  // A ring whose buffers are reused.
  static LinearWgmmaLargeM plan(const Gemm& op) {
    auto plan = rules_plan<LinearWgmmaLargeM>(op, sweep_gpu());
    plan.threads = 128;
    plan.code_words = 1;
    plan.splits = 1;
    plan.combine = Combine::kernel;
    return plan;
  }
  // Warpgroups share columns, and each block stages its own x.
  static LinearWgmmaLargeM shared(const Gemm& op, int along, int prepack_x) {
    LinearWgmmaLargeM plan = Rowgroups::plan(op);
    plan.threads = 512;
    plan.groups_along_columns = along;
    plan.chunk_columns = along * 64;
    plan.splits = 3;
    plan.codebook = all_shared(op.weights.entries());
    plan.prepack_x = prepack_x;
    return plan;
  }

  static std::vector<std::uint16_t> run(const Gemm& op, const LinearData& data) {
    return run(op, plan(op), data);
  }
  static std::vector<std::uint16_t> run(const Gemm& op, const LinearWgmmaLargeM& plan,
                                        const LinearData& data) {
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  }
};

TEST_P(Rowgroups, SumsOfBytesAreExactForAnyNumberOfStages) {
  for (const int stages : a_third({1, 2, 3, 4})) {
    const Gemm op = problem(stages, true);
    ASSERT_EQ(plan(op).byte_sums, 1);
    const LinearData data = make_linear_data(op, {.seed = 41});
    const std::vector<std::uint16_t> y = run(op, data);
    const std::vector<double> reference = reference_linear(data);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double value = element_to_float(op.dtype, y[i]);
      error += (value - reference[i]) * (value - reference[i]);
      size += reference[i] * reference[i];
    }
    // The error of rounding y to the element type, and a little more.
    EXPECT_LE(std::sqrt(error / size), op.dtype == DType::f16 ? 3e-4 : 2.4e-3) << stages;
  }
}

// Who stages x changes no bit; who shares the columns changes the order of sums.
TEST_P(Rowgroups, XOfABlockIsThatOfTheKernelBefore) {
  for (const bool bytes : {false, true}) {
    const Gemm op = problem(2, bytes, 1432);  // the last step is not whole
    LinearData data = make_linear_data(op, {.seed = 45});
    data.x[5 * 1432 + 900] = element_from_float(op.dtype, std::numeric_limits<float>::quiet_NaN());
    const std::vector<double> reference = reference_linear(data);
    for (const int along : a_third({1, 2, 4})) {
      const std::vector<std::uint16_t> y = run(op, shared(op, along, 1), data);
      EXPECT_EQ(run(op, shared(op, along, 0), data), y) << along;
      double error = 0, size = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double value = element_to_float(op.dtype, y[i]);
        ASSERT_EQ(std::isnan(value), i / 100 == 5) << i;
        if (std::isnan(value)) continue;
        error += (value - reference[i]) * (value - reference[i]);
        size += reference[i] * reference[i];
      }
      EXPECT_LE(std::sqrt(error / size), op.dtype == DType::f16 ? 5e-4 : 4e-3) << along;
    }
  }
}

TEST_P(Rowgroups, SumsOfTheLargestBytesDoNotOverflow) {
  for (const int stages : {1, 2}) {
    const Gemm op = problem(stages, true, 4096);
    LinearData data = make_linear_data(op, {.seed = 42});
    const auto peak = static_cast<float>(op.weights.entry_peak());
    for (std::uint16_t& bits : data.weights.codebooks) bits = element_from_float(op.dtype, -peak);
    for (float& scale : data.weights.stage_scales) scale = 0x1p-12f;
    for (std::uint16_t& bits : data.x) bits = element_from_float(op.dtype, 1.0f);
    for (const std::uint16_t bits : run(op, data)) {
      EXPECT_NEAR(element_to_float(op.dtype, bits), -peak * static_cast<float>(stages), 0.6f);
    }
  }
}

TEST_P(Rowgroups, ARowsNanStaysInIt) {
  for (const bool bytes : {false, true}) {
    const Gemm op = problem(2, bytes);
    const LinearData data = make_linear_data(op, {.seed = 43});
    const std::vector<std::uint16_t> before = run(op, data);
    const auto columns = static_cast<std::size_t>(op.shape.in_features);
    const auto outputs = static_cast<std::size_t>(op.shape.out_features);
    LinearData with = data;
    with.x[7 * columns + 700] =
        element_from_float(op.dtype, std::numeric_limits<float>::quiet_NaN());
    const std::vector<std::uint16_t> after = run(op, with);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (i / outputs == 7) {
        EXPECT_TRUE(std::isnan(element_to_float(op.dtype, after[i]))) << i;
      } else {
        EXPECT_EQ(after[i], before[i]) << i;
      }
    }
  }
}

// Four outputs are stored at once if y is aligned for it; y may begin at any element.
TEST_P(Rowgroups, ResultsStandWhereverYBegins) {
  const Gemm op = problem(2, true);
  const LinearData data = make_linear_data(op, {.seed = 47});
  for (const Combine combine : {Combine::kernel, Combine::cluster}) {
    LinearWgmmaLargeM plan = shared(op, 2, 1);
    plan.splits = combine == Combine::kernel ? 1 : 3;
    plan.combine = combine;
    Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    const std::vector<std::uint16_t> y = kernel.run(data);
    for (const std::size_t bytes : {2u, 4u, 8u}) {
      EXPECT_EQ(kernel.run(data, {.results = bytes}), y) << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, Rowgroups, testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(enum_name(test.param)); });

}  // namespace
}  // namespace vqgen::test

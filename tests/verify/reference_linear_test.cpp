#include "runtime/ops/linear/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "runtime/verify/hard_input.h"
#include "runtime/verify/row_decoder.h"
#include "tests/verify/linear_cancellation.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

// W = [1 0 2 -1; 0 1 0.5 4], x = [1 2 3 4; -1 0 0 2].
LinearData tiny() {
  LinearData data;
  data.weights = test::tiny_tensor(2, 4, {0, 2, 1, 3});
  data.input_rows = 2;
  data.x = test::f16({1, 2, 3, 4, -1, 0, 0, 2});
  return data;
}

TEST(ReferenceGemv, AgreesWithAMatrixByHand) {
  EXPECT_EQ(reference_linear(tiny()), (std::vector<double>{3, 19.5, -3, 8}));
}

TEST(ReferenceGemv, ScalesOutputs) {
  LinearData data = tiny();
  data.weights.format.output_scales = true;
  data.weights.output_scales = {2, 0.5};
  EXPECT_EQ(reference_linear(data), (std::vector<double>{6, 9.75, -6, 4}));
}

// Two experts with matrices [1 0 2 -1] and [0 1 0.5 4]; their rows of x are the first and the last
// but one, and the last belongs to no expert.
TEST(ReferenceGemv, AnExpertHasItsOwnRowsCodesAndScales) {
  LinearData data;
  data.weights = test::tiny_tensor(2, 4, {0, 2, 1, 3});
  data.weights.heads = 2;
  data.weights.rows = 1;
  data.weights.units = 2;
  data.weights.expert_units = 1;
  const std::vector<std::uint16_t> book = data.weights.codebooks;
  for (const std::uint16_t bits : book) {  // twice as large
    data.weights.codebooks.push_back(
        element_from_float(data.dtype, 2 * element_to_float(data.dtype, bits)));
  }
  data.input_rows = 3;
  data.x = test::f16({1, 2, 3, 4, -1, 0, 0, 2, 9, 9, 9, 9});
  data.expert_rows = {0, 1, 2};
  EXPECT_EQ(reference_linear(data), (std::vector<double>{3, 16, 0}));
  data.weights.format.output_scales = true;
  data.weights.output_scales = {2, 0.5};
  EXPECT_EQ(reference_linear(data), (std::vector<double>{6, 8, 0}));
  data.expert_rows = {0, 0, 2};
  EXPECT_EQ(reference_linear(data), (std::vector<double>{0.5 * 2 * 19.5, 8, 0}));
  for (const std::vector<std::int32_t>& wrong :
       {std::vector<std::int32_t>{0, 1}, {0, 2, 1}, {-1, 1, 2}, {0, 1, 4}}) {
    data.expert_rows = wrong;
    EXPECT_THROW(reference_linear(data), Error);
  }
}

TEST(ReferenceGemv, CancellationIsOfTermsToTheirSums) {
  LinearData data = tiny();
  EXPECT_EQ(test::linear_cancellation(data, reference_linear(data)), 1);
  data.x = test::f16({3, 0, 0, 2, 0, 0, 0, 0});  // 3 - 2 and 8, and zeros
  EXPECT_EQ(test::linear_cancellation(data, reference_linear(data)),
            std::sqrt((9.0 + 4 + 64) / (1 + 64)));
  data.weights.format.output_scales = true;
  data.weights.output_scales = {2, 0};
  EXPECT_EQ(test::linear_cancellation(data, reference_linear(data)), std::sqrt(13.0));
}

TEST(ReferenceGemv, TheUnquantizedMatrixGivesTheSame) {
  LinearData data = tiny();
  data.original_weights = test::f16({1, 0, 2, -1, 0, 1, 0.5, 4});
  EXPECT_EQ(reference_linear_unquantized(data), reference_linear(data));
}

// An impulse at column i reads off column i of the weights.
TEST(ReferenceGemv, ImpulsesReadOffTheWeights) {
  Gemv problem;
  problem.shape = {.rows = 2, .out_features = 11, .in_features = 24};
  problem.weights = {.vector_size = 4, .index_bits = 3, .num_codebooks = 2, .scope = Scope::tile};
  problem.weights.tile_rows = 4;
  problem.weights.tile_columns = 16;
  problem.weights.stage_scales = problem.weights.output_scales = true;
  LinearData data = make_linear_data(problem, {});
  const RowDecoder decoder(data.weights);
  std::vector<double> row(24);
  for (std::size_t column = 0; column < 24; ++column) {
    std::vector<double> x(48, 0.0);
    x[column] = 1;
    x[24 + column] = -2;
    data.x = test::f16(x);
    const std::vector<double> y = reference_linear(data);
    for (std::size_t o = 0; o < 11; ++o) {
      decoder.decode(0, 0, static_cast<std::int64_t>(o), row);
      const double weight = row[column] * static_cast<double>(data.weights.output_scales[o]);
      EXPECT_DOUBLE_EQ(y[o], weight);
      EXPECT_DOUBLE_EQ(y[11 + o], -2 * weight);
    }
  }
}

TEST(ReferenceGemv, RejectsWhatContradictsItself) {
  LinearData data = tiny();
  EXPECT_THROW(reference_linear_unquantized(data), Error);
  data.original_weights = test::f16({1, 2});
  EXPECT_THROW(reference_linear_unquantized(data), Error);
  data.x.pop_back();
  EXPECT_THROW(reference_linear(data), Error);
}

}  // namespace
}  // namespace vqgen

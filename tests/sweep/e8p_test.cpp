// The E8P decoder of the kernels, for all codes: every point has exact 16-bit elements, so one
// column of x at a time brings them out to the bit.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "quantizer/encode.h"
#include "runtime/ops/linear/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr std::int64_t kCodes = 65536;

Linear all_codes(DType dtype, int columns) {
  Linear op;
  op.dtype = dtype;
  op.shape = {.rows = columns, .out_features = kCodes * 8 / columns, .in_features = columns};
  op.weights = {.vector_size = 8, .index_bits = 16};
  op.weights.decoder = Decoder::e8p;
  return op;
}

// Weights with every code once, in order; row r of x is 1 in column r and 0 elsewhere. One entry is
// not the standard table's, since tables are data.
LinearData data_of(const Linear& op) {
  LinearData data = make_linear_data(op, {.seed = 1});
  const auto columns = static_cast<std::size_t>(op.shape.in_features);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < data.weights.codes.size(); ++i) {
    const bool pair = columns > 8;  // else a row is one code, padded to a word
    data.weights.codes[i] = pair ? next | (next + 1) << 16 : next;
    next += pair ? 2 : 1;
  }
  EXPECT_EQ(next, kCodes);
  constexpr std::array kForeign{3.5f, 2.5f, 3.5f, 0.5f, 1.5f, 3.5f, 3.5f, 3.5f};
  for (std::size_t i = 0; i < 8; ++i) {
    data.weights.codebooks[100 * 8 + i] = element_from_float(op.dtype, kForeign[i]);
  }
  std::fill(data.x.begin(), data.x.end(), std::uint16_t{0});
  for (std::size_t r = 0; r < columns; ++r) {
    data.x[r * columns + r] = element_from_float(op.dtype, 1.0f);
  }
  return data;
}

void expect_all_points(const Problem& problem, const Plan& plan, const LinearData& data) {
  const Verdict verdict = check(plan, problem, sweep_gpu());
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  const Linear& op = *as_linear(problem);
  const std::vector<double> expected = reference_linear(data);
  const std::vector<std::uint16_t> y =
      Kernel(*sweep_backend(), problem, plan, sweep_gpu()).run(data);
  ASSERT_EQ(y.size(), static_cast<std::size_t>(kCodes * 8));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (static_cast<double>(element_to_float(op.dtype, y[i])) != expected[i]) ++wrong;
  }
  EXPECT_EQ(wrong, 0u);
  // y is [columns][outputs]: the points as vectors, all different.
  std::set<std::array<std::uint16_t, 8>> points;
  const auto outputs = static_cast<std::size_t>(op.shape.out_features);
  for (std::size_t column = 0; column < y.size() / outputs; column += 8) {
    for (std::size_t o = 0; o < outputs; ++o) {
      std::array<std::uint16_t, 8> point{};
      for (std::size_t i = 0; i < 8; ++i) point[i] = y[(column + i) * outputs + o];
      points.insert(point);
    }
  }
  EXPECT_EQ(points.size(), static_cast<std::size_t>(kCodes));
}

class E8p : public SweepTest<testing::TestWithParam<DType>> {};

// Entries near and far: the parity of an entry is computed at each access, or when it is loaded.
const std::array kPlaces{all_global(),
                         Placement{.registers = 2, .replicated = 30, .copies = 4, .shared = 200}};

TEST_P(E8p, LanesDecodeEveryCode) {
  const Gemv op{all_codes(GetParam(), 8)};
  const LinearData data = data_of(op);
  auto plan = rules_plan<LinearSimt>(op, sweep_gpu());
  for (const Placement& place : kPlaces) {
    SCOPED_TRACE(short_name(place, 256));
    plan.codebook = place;
    expect_all_points(op, plan, data);
  }
}

TEST_P(E8p, FragmentsDecodeEveryCode) {
  const Gemm op{all_codes(GetParam(), 64)};
  const LinearData data = data_of(op);
  auto plan = rules_plan<LinearMma>(op, sweep_gpu());
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok);
  for (const Placement& place : kPlaces) {
    SCOPED_TRACE(short_name(place, 256));
    plan.codebook = place;
    expect_all_points(op, plan, data);
  }
}

// The quantizer's decoder and the reference implement one definition independently.
TEST_P(E8p, TheQuantizerDecodesAsTheReference) {
  Linear op = all_codes(GetParam(), 64);
  op.weights.num_codebooks = 2;
  op.weights.stage_scales = true;
  op.weights.scope = Scope::tile;
  op.weights.tile_rows = 1000;
  op.weights.tile_columns = 40;
  const QuantizedTensor weights = make_linear_data(op, {.seed = 2}).weights;
  const RowDecoder reference(weights);
  const FloatTensor decoded = decode(weights);
  std::vector<double> row(64);
  for (std::int64_t o = 0; o < weights.rows; ++o) {
    reference.decode(0, 0, o, row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(decoded.row(o)[i]), row[i], 1e-6) << o << ' ' << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, E8p, testing::Values(DType::f16, DType::bf16),
                         [](const auto& each) {
                           return std::string(each.param == DType::f16 ? "F16" : "BF16");
                         });

}  // namespace
}  // namespace vqgen::test

// The nearest point against all codes of small books, and of the lattice.
#include "runtime/verify/row_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/verify/hard_tensor.h"

namespace vqgen::test {
namespace {

void expect_nearest_of_all(const VqFormat& format, DType dtype, int vectors) {
  Random random(7);
  const TensorShape shape{.heads = 2, .rows = 1, .columns = 16, .units = 2};
  QuantizedTensor tensor = make_hard_tensor(format, dtype, shape, 1, random);
  fill_codes(tensor, {}, random);
  const RowDecoder points(tensor);
  const std::int64_t books = tensor.units * format.residuals;
  for (int i = 0; i < vectors; ++i) {
    const std::int64_t book = i % books;
    // Near a point, far from all, at one, and zeros.
    std::vector<double> x =
        points.point(book, static_cast<std::uint32_t>(random.below(format.codes())));
    for (double& each : x) {
      each = i % 4 == 0   ? each + random.normal() * 0.1
             : i % 4 == 1 ? random.normal() * 9
             : i % 4 == 2 ? each
                          : 0;
    }
    double least = std::numeric_limits<double>::infinity();
    for (int code = 0; code < format.codes(); ++code) {
      const std::vector<double> point = points.point(book, static_cast<std::uint32_t>(code));
      double sum = 0;
      for (std::size_t d = 0; d < x.size(); ++d) sum += (x[d] - point[d]) * (x[d] - point[d]);
      least = std::min(least, std::sqrt(sum));
    }
    EXPECT_DOUBLE_EQ(points.least_distance(book, x), least) << i;
    if (i % 4 == 2) {
      EXPECT_EQ(least, 0);
    }
  }
}

TEST(CodePoints, TheNearestOfATable) {
  VqFormat format{.vector_size = 4, .index_bits = 7, .residuals = 3, .scope = Scope::head};
  expect_nearest_of_all(format, DType::f16, 64);
  format.stage_scales = true;
  expect_nearest_of_all(format, DType::bf16, 64);
}

TEST(CodePoints, TheNearestOfTheLattice) {
  VqFormat format{.vector_size = 8, .index_bits = 16, .residuals = 2, .scope = Scope::head};
  format.decoder = Decoder::e8p;
  expect_nearest_of_all(format, DType::f16, 12);
  format.stage_scales = true;
  expect_nearest_of_all(format, DType::f16, 12);
}

}  // namespace
}  // namespace vqgen::test

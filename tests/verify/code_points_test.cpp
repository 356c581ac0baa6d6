// The nearest point, compared with all codes of small books and of the lattice.
#include "runtime/verify/row_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "runtime/verify/hard_tensor.h"

namespace vqgen::test {
namespace {

void expect_nearest_of_all(const VqFormat& format, DType dtype, int vectors) {
  Random random(7);
  const TensorShape shape{.heads = 2, .rows = 1, .columns = 16, .units = 2};
  QuantizedTensor tensor = make_hard_tensor(format, dtype, shape, 1, random);
  fill_codes(tensor, {}, random);
  const RowDecoder points(tensor);
  const std::int64_t books = tensor.units * format.num_codebooks;
  for (int i = 0; i < vectors; ++i) {
    const std::int64_t book = i % books;
    // Points near a code's, far from all, exactly on one, and zeros.
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
  VqFormat format{.vector_size = 4, .index_bits = 7, .num_codebooks = 3, .scope = Scope::head};
  expect_nearest_of_all(format, DType::f16, 64);
  format.stage_scales = true;
  expect_nearest_of_all(format, DType::bf16, 64);
}

TEST(CodePoints, TheNearestOfTheLattice) {
  VqFormat format{.vector_size = 8, .index_bits = 16, .num_codebooks = 2, .scope = Scope::head};
  format.decoder = Decoder::e8p;
  expect_nearest_of_all(format, DType::f16, 12);
  format.stage_scales = true;
  expect_nearest_of_all(format, DType::f16, 12);
}

// The nearest of all codes except -128 and NaN, which are never written.
TEST(CodePoints, TheNearestScalars) {
  Random random(9);
  for (const Decoder decoder : {Decoder::scalar, Decoder::e4m3}) {
    VqFormat format{.vector_size = 2, .index_bits = 16, .scope = Scope::head};
    format.decoder = decoder;
    const TensorShape shape{.heads = 2, .rows = 1, .columns = 16, .units = 2};
    QuantizedTensor tensor = make_hard_tensor(format, DType::f16, shape, 1, random);
    fill_codes(tensor, {}, random);
    const RowDecoder points(tensor);
    const auto never = [&](std::uint32_t number) {
      return decoder == Decoder::e4m3 ? (number & 0x7fu) == 0x7fu : number == 0x80u;
    };
    for (int i = 0; i < 24; ++i) {
      const std::vector<double> x{random.normal() * i, random.normal() / (i + 1)};
      double least = std::numeric_limits<double>::infinity();
      for (std::uint32_t code = 0; code < 65536; ++code) {
        if (never(code & 0xffu) || never(code >> 8)) continue;
        const std::vector<double> point = points.point(i % 2, code);
        least = std::min(least, std::hypot(x[0] - point[0], x[1] - point[1]));
      }
      EXPECT_NEAR(points.least_distance(i % 2, x), least, 1e-12 * (1 + least)) << i;
    }
  }
}

TEST(CodePoints, WhatScalarCodesStandFor) {
  VqFormat format{.vector_size = 2, .index_bits = 16};
  QuantizedTensor tensor;
  tensor.rows = 1;
  tensor.columns = 2;
  tensor.row_words = 1;
  tensor.units = 1;
  tensor.codes = {0};
  tensor.codebooks = {element_from_float(DType::f16, 1.0f), element_from_float(DType::f16, 2.0f)};
  format.decoder = Decoder::scalar;
  tensor.format = format;
  EXPECT_EQ(RowDecoder(tensor).point(0, 0x7f81), (std::vector<double>{-127, 254}));
  tensor.format.vector_size = 4;
  tensor.columns = 4;
  tensor.codebooks.insert(tensor.codebooks.end(), 2, tensor.codebooks[0]);
  EXPECT_EQ(RowDecoder(tensor).point(0, 0x0f79), (std::vector<double>{-7, 14, -1, 0}));
  tensor.format.decoder = Decoder::affine;
  EXPECT_THROW(RowDecoder{tensor}, Error);  // its zeros
  tensor.format.token_scales = true;
  tensor.row_words = 2;
  tensor.codes = {0x0f79, 0xc0003800};  // -2 and 0.5
  EXPECT_EQ(RowDecoder(tensor).point(0, 0x0f79), (std::vector<double>{9, 14, 15, 0}));
  std::vector<double> row(4);
  RowDecoder(tensor).decode(0, 0, 0, row);
  EXPECT_EQ(row, (std::vector<double>{2.5, 5, 5.5, -2}));
  tensor.row_words = 1;
  tensor.codes = {0};
  tensor.format = format;
  tensor.format.decoder = Decoder::e4m3;
  tensor.columns = 2;
  tensor.codebooks.resize(2);
  EXPECT_EQ(RowDecoder(tensor).point(0, 0x01fe), (std::vector<double>{-448, 2 * 0x1p-9}));
  EXPECT_EQ(RowDecoder(tensor).point(0, 0x8838), (std::vector<double>{1, 2 * -0x1p-6}));
  tensor.codebooks[1] = element_from_float(DType::f16, 0.0f);
  EXPECT_THROW(RowDecoder{tensor}, Error);
}

}  // namespace
}  // namespace vqgen::test

#include "quantizer/transform.h"

#include <cmath>

#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::normal_tensor;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

// Entry (i, j) of the natural-order Hadamard matrix of VecInfer eq. 5.
double hadamard_entry(std::size_t i, std::size_t j, std::size_t size) {
  const double sign = __builtin_popcountll(i & j) % 2 == 0 ? 1 : -1;
  return sign / std::sqrt(static_cast<double>(size));
}

TEST(Hadamard, IsTheMatrixOfThePaperAndOrthonormal) {
  for (const std::size_t size : {1u, 2u, 4u, 64u, 128u, 256u}) {
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < size; ++i) {
      std::vector<float> row(size, 0.0f);
      row[i] = 1.0f;
      hadamard(row);
      for (std::size_t j = 0; j < size; ++j) {
        ASSERT_NEAR(row[j], hadamard_entry(i, j, size), 1e-6);
      }
      rows.push_back(row);
    }
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) {
        ASSERT_NEAR(dot(rows[i], rows[j]), i == j ? 1.0 : 0.0, 1e-5);
      }
    }
  }
}

// Of 12, 20 or 28 times a power of two: its own inverse, symmetric, of entries of one size, and the
// Kronecker product of its own smaller one with the matrix of 2.
TEST(Hadamard, OfOtherSizesIsOrthonormalSymmetricAndAProduct) {
  for (const std::size_t size : {12u, 20u, 28u, 80u, 96u, 112u, 160u, 192u}) {
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < size; ++i) {
      rows.emplace_back(size, 0.0f)[i] = 1.0f;
      hadamard(rows.back());
    }
    const double entry = 1 / std::sqrt(static_cast<double>(size));
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) {
        ASSERT_NEAR(std::abs(rows[i][j]), entry, 1e-6);
        ASSERT_EQ(rows[i][j], rows[j][i]);
        ASSERT_NEAR(dot(rows[i], rows[j]), i == j ? 1.0 : 0.0, 1e-5) << size;
      }
    }
    if (size % 8 != 0) continue;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) {
        const float of_pairs =
            rows[i / 2 * 2][j / 2 * 2] * (i % 2 == 1 && j % 2 == 1 ? -1.0f : 1.0f);
        ASSERT_EQ(rows[i][j], of_pairs);
      }
    }
  }
}

TEST(Smooth, IsTheRootOfTheLargestMagnitudeOverBatchesAndTokens) {
  FloatTensor keys{2, 2, 2, 2, std::vector<float>(16, 0.0f)};
  keys.row(0)[0] = -4.0f;  // batch 0, head 0, token 0
  keys.row(4)[0] = 9.0f;   // batch 1, head 0, token 0
  keys.row(7)[1] = 0.25f;  // batch 1, head 1, token 1
  keys.row(2)[0] = 1.0f;   // batch 0, head 1, token 0
  EXPECT_EQ(smooth_factors(keys), (std::vector<float>{3.0f, 3.0f, 1.0f, 0.5f}));
}

TEST(Smooth, ADeadChannelTakesTheLeastOfItsHead) {
  const FloatTensor keys{1, 2, 1, 4, {4.0f, 0.0f, -0.25f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
  EXPECT_EQ(smooth_factors(keys),
            (std::vector<float>{2.0f, 0.5f, 0.5f, 0.5f, 1.0f, 1.0f, 1.0f, 1.0f}));
}

TEST(Transform, LeavesTheProductOfQueryAndKeyAsItIs) {
  for (const bool smooth : {false, true}) {
    for (const bool rotate : {false, true}) {
      VqFormat format;
      format.smooth = smooth;
      format.hadamard = rotate;
      const FloatTensor original = normal_tensor(1, 2, 9, 128, 3);
      FloatTensor keys = original;
      for (std::size_t i = 0; i < keys.data.size(); i += 128) keys.data[i + 5] *= 20.0f;
      const FloatTensor before = keys;
      const std::vector<float> factors = smooth ? smooth_factors(keys) : std::vector<float>{};
      transform_keys(keys, format, factors);
      for (std::int64_t row = 0; row < keys.row_count(); ++row) {
        std::vector<float> query = normal_floats(128, static_cast<std::uint32_t>(row));
        const double expected = dot(query, before.row(row));
        const auto head = static_cast<std::size_t>(keys.head_of(row));
        for (std::size_t i = 0; smooth && i < query.size(); ++i)
          query[i] *= factors[head * 128 + i];
        if (rotate) hadamard(query);
        const double scale = std::sqrt(dot(query, query) * dot(keys.row(row), keys.row(row)));
        EXPECT_NEAR(dot(query, keys.row(row)), expected, 1e-5 * std::max(scale, 1.0));
      }
      untransform_keys(keys, format, factors);
      for (std::size_t i = 0; i < keys.data.size(); ++i) {
        ASSERT_NEAR(keys.data[i], before.data[i], 1e-4);
      }
    }
  }
}

TEST(Transform, SmoothedChannelsHaveTheRootOfTheirMaximumAsMaximum) {
  FloatTensor keys = normal_tensor(1, 1, 50, 8, 4);
  VqFormat format;
  format.smooth = true;
  const std::vector<float> factors = smooth_factors(keys);
  transform_keys(keys, format, factors);
  for (std::size_t channel = 0; channel < 8; ++channel) {
    float largest = 0;
    for (std::int64_t row = 0; row < 50; ++row) {
      largest = std::max(largest, std::abs(keys.row(row)[channel]));
    }
    EXPECT_NEAR(largest, factors[channel], 1e-5);
  }
}

}  // namespace
}  // namespace vqgen

#include "runtime/verify/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "runtime/verify/random.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

using test::kInfinity;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<double> normals(std::size_t count) {
  Random random(5);
  std::vector<double> result(count);
  for (double& value : result) value = random.normal();
  return result;
}

std::vector<std::uint16_t> rounded(const std::vector<double>& values, DType dtype) {
  std::vector<std::uint16_t> bits;
  for (const double v : values) bits.push_back(element_from_float(dtype, static_cast<float>(v)));
  return bits;
}

TEST(Compare, AcceptsRoundingAlone) {
  const std::vector<double> reference = normals(5000);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Comparison c = compare(reference, rounded(reference, dtype), dtype);
    EXPECT_TRUE(c.ok);
    EXPECT_GT(c.rel_err, 0);
    EXPECT_LT(c.rel_err, tolerance(dtype) / 4);
    EXPECT_EQ(c.nonfinite_mismatches, 0);
  }
}

TEST(Compare, MeasuresByTheNorm) {
  const std::vector<double> reference = {3, 4, 0};
  const Comparison c = compare(reference, std::vector<float>{3, 4, 0.5f}, 0.2);
  EXPECT_DOUBLE_EQ(c.rel_err, 0.1);
  EXPECT_DOUBLE_EQ(c.max_abs_err, 0.5);
  EXPECT_EQ(c.worst, 2);
  EXPECT_TRUE(c.ok);
  EXPECT_FALSE(compare(reference, std::vector<float>{3, 4, 0.5f}, 0.05).ok);
}

TEST(Compare, CatchesOneWrongElementAmongMany) {
  const std::vector<double> reference = normals(1 << 20);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<double> wrong = reference;
    wrong[777] += 1;
    const Comparison c = compare(reference, rounded(wrong, dtype), dtype);
    EXPECT_LT(c.rel_err, tolerance(dtype));  // the norm alone would let it pass
    EXPECT_FALSE(c.ok);
    EXPECT_EQ(c.worst, 777);
  }
}

TEST(Compare, CatchesSwappedRowsAndAMissingTail) {
  const std::vector<double> reference = normals(4 * 128);
  std::vector<double> swapped = reference;
  std::swap_ranges(swapped.begin(), swapped.begin() + 128, swapped.begin() + 128);
  EXPECT_FALSE(compare(reference, rounded(swapped, DType::f16), DType::f16).ok);
  std::vector<double> tail = reference;
  tail.back() = 0;
  EXPECT_FALSE(compare(reference, rounded(tail, DType::f16), DType::f16).ok);
}

TEST(Compare, NanNeverPasses) {
  for (const double reference : {1.0, kInfinity, static_cast<double>(kNan)}) {
    const Comparison c =
        compare(std::vector<double>{reference, 2}, std::vector<float>{kNan, 2}, 1e9);
    EXPECT_FALSE(c.ok);
    EXPECT_EQ(c.nonfinite_mismatches, 1);
    EXPECT_EQ(c.worst, 0);
    EXPECT_EQ(c.rel_err, kInfinity);
  }
  EXPECT_FALSE(compare(std::vector<double>{std::nan("")}, std::vector<float>{1}, 1e9).ok);
  EXPECT_FALSE(compare(std::vector<double>{1}, std::vector<std::uint16_t>{0x7e00}, DType::f16).ok);
}

TEST(Compare, AnInfinityAgreesWithItselfOnly) {
  const auto ok = [](double reference, float actual) {
    return compare(std::vector<double>{reference, 1}, std::vector<float>{actual, 1}, 1e-3).ok;
  };
  EXPECT_TRUE(ok(-kInfinity, -kInf));
  EXPECT_FALSE(ok(-kInfinity, kInf));
  EXPECT_FALSE(ok(-kInfinity, -1e30f));
  EXPECT_FALSE(ok(1e30, kInf));
}

TEST(Compare, AllZeroIsRightOnlyForAZeroReference) {
  const std::vector<float> zeros(8);
  const std::vector<double> reference(8, 0.0);
  EXPECT_TRUE(compare(reference, zeros, 1e-3).ok);
  EXPECT_EQ(compare(reference, zeros, 1e-3).worst, -1);
  EXPECT_FALSE(compare(normals(8), zeros, 1e-3).ok);
  const Comparison c = compare(reference, std::vector<float>{0, 0, 0, 3, 0, 0, 0, 4}, 1e-3);
  EXPECT_DOUBLE_EQ(c.rel_err, 5);
  EXPECT_FALSE(c.ok);
}

TEST(Compare, ResultsThatVanishInTheTypeAreRight) {
  for (const auto& [dtype, least] :
       {std::pair{DType::f16, 0x1p-24}, std::pair{DType::bf16, 0x1p-133}}) {
    const std::vector<std::uint16_t> zeros(3), ones(3, 1);
    EXPECT_TRUE(compare(std::vector<double>(3, 1e-88), zeros, dtype).ok);
    EXPECT_TRUE(compare(std::vector<double>(3, 0.6 * least), zeros, dtype).ok);
    EXPECT_TRUE(compare(std::vector<double>(3, 0.4 * least), ones, dtype).ok);
    EXPECT_FALSE(compare(std::vector<double>(3, 2 * least), zeros, dtype).ok);
    EXPECT_FALSE(compare(std::vector<double>(3, 1e-88), std::vector<float>(3), 1e-3).ok);
  }
}

TEST(Compare, SizesMustAgree) {
  EXPECT_THROW(compare(normals(3), std::vector<float>(2), 1e-3), Error);
  EXPECT_TRUE(compare({}, std::span<const float>{}, 1e-3).ok);
}

TEST(CompareLse, AllowsAnAbsoluteAndARelativePart) {
  const auto ok = [](double reference, float actual) {
    return compare_lse(std::vector<double>{reference, -kInfinity},
                       std::vector<float>{actual, -kInf}, DType::f16)
        .ok;
  };
  EXPECT_TRUE(ok(0, 1.9e-3f));
  EXPECT_FALSE(ok(0, 2.1e-3f));
  EXPECT_TRUE(ok(10, 10.021f));
  EXPECT_FALSE(ok(10, 10.023f));
  EXPECT_FALSE(ok(10, kNan));
  EXPECT_FALSE(ok(10, -kInf));
  EXPECT_FALSE(ok(-kInfinity, 0));
}

TEST(CompareLse, CatchesABaseTwoLogarithm) {
  EXPECT_FALSE(
      compare_lse(std::vector<double>{8}, std::vector<float>{8 * 1.442695f}, DType::bf16).ok);
}

}  // namespace
}  // namespace vqgen

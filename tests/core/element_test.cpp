// The 16-bit conversions, exhaustively: every value of both types, every half between neighbours.
#include "core/format/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace vqgen {
namespace {

struct Type {
  DType dtype;
  int mantissa_bits;
  int bias;
  std::uint16_t infinity;

  std::uint16_t from(double value) const {
    return element_from_float(dtype, static_cast<float>(value));
  }
  float to(unsigned bits) const {
    return element_to_float(dtype, static_cast<std::uint16_t>(bits));
  }
  // The value of finite bits, by the definition of IEEE 754.
  double meaning(unsigned bits) const {
    const auto exponent = static_cast<int>((bits & 0x7fffu) >> mantissa_bits);
    const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
    const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    const double magnitude = std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
};

class Element : public testing::TestWithParam<Type> {};

TEST_P(Element, EveryValueMeansWhatItShouldAndComesBack) {
  const Type& type = GetParam();
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const float value = type.to(bits);
    const unsigned magnitude = bits & 0x7fff;
    if (magnitude > type.infinity) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_GT(type.from(value) & 0x7fff, type.infinity) << bits;  // still a NaN
      ASSERT_EQ(type.from(value) & 0x8000, bits & 0x8000) << bits;
    } else {
      if (magnitude == type.infinity) {
        ASSERT_TRUE(std::isinf(value)) << bits;
      } else {
        ASSERT_EQ(static_cast<double>(value), type.meaning(bits)) << bits;
      }
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(type.from(value), bits);
    }
  }
}

// A value half way between neighbours goes to the even one, values beside it to the nearer.
TEST_P(Element, RoundsToNearestEven) {
  const Type& type = GetParam();
  for (unsigned low = 0; low < type.infinity; ++low) {
    const double below = type.meaning(low);
    const double above = type.meaning(low + 1);  // for infinity: what would follow the largest
    const auto half = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(half), (below + above) / 2) << "the half is a float";
    const float less = std::nextafter(half, 0.0f);
    const float more = std::nextafter(half, std::numeric_limits<float>::infinity());
    for (const unsigned sign : {0u, 0x8000u}) {
      const double factor = sign != 0 ? -1 : 1;
      ASSERT_EQ(type.from(factor * half), sign | (low + low % 2)) << low;
      ASSERT_EQ(type.from(factor * less), sign | low) << low;
      ASSERT_EQ(type.from(factor * more), sign | (low + 1)) << low;
    }
  }
}

TEST_P(Element, Extremes) {
  const Type& type = GetParam();
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(type.from(Limits::infinity()), type.infinity);
  EXPECT_EQ(type.from(-Limits::infinity()), 0x8000 | type.infinity);
  EXPECT_EQ(type.from(Limits::max()), type.infinity);
  EXPECT_EQ(type.from(Limits::lowest()), 0x8000 | type.infinity);
  EXPECT_EQ(type.from(Limits::denorm_min()), 0);
  EXPECT_EQ(type.from(-Limits::denorm_min()), 0x8000);
  EXPECT_GT(type.from(Limits::quiet_NaN()) & 0x7fff, type.infinity);
  EXPECT_GT(type.from(Limits::signaling_NaN()) & 0x7fff, type.infinity);
}

INSTANTIATE_TEST_SUITE_P(Both, Element,
                         testing::Values(Type{DType::f16, 10, 15, 0x7c00},
                                         Type{DType::bf16, 7, 127, 0x7f80}),
                         [](const auto& test) { return std::string(enum_name(test.param.dtype)); });

TEST(ElementValues, WellKnown) {
  EXPECT_EQ(f16_from_float(1.0f), 0x3c00);
  EXPECT_EQ(f16_from_float(65504.0f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(0x1p-24f), 0x0001);
  EXPECT_EQ(f16_from_float(0x1p-14f), 0x0400);
  EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_float(-2.5f), 0xc020);
  EXPECT_EQ(bf16_to_float(0x4049), 3.140625f);
}

}  // namespace
}  // namespace vqgen

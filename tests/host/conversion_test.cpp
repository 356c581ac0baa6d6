// The conversions of the host machine layer against core/element, which other tests check.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "core/format/element.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

constexpr std::size_t kPerThread = 64;

// Each thread converts kPerThread words with `expression`, which names the word `x`.
std::vector<std::uint32_t> convert(const std::string& expression, std::vector<std::uint32_t> in) {
  Trial trial;
  trial.text =
      "VQ_KERNEL(trial, 256, Args) {\n"
      "  const int first = (vq::block_x() * 256 + vq::thread_index()) * 64;\n"
      "  for (int i = 0; i < 64; ++i) {\n"
      "    const vq::u32 x = vq::load_global(args.in + first + i);\n"
      "    vq::store_global(args.out + first + i, " +
      expression +
      ");\n"
      "  }\n"
      "}\n";
  trial.threads = 256;
  trial.grid.x = static_cast<unsigned>(in.size() / 256 / kPerThread);
  trial.out_words = in.size();
  trial.in = std::move(in);
  return run(trial);
}

class Conversion : public testing::TestWithParam<DType> {
 protected:
  std::string element() const {
    return GetParam() == DType::f16 ? "vq::Element::f16" : "vq::Element::bf16";
  }
};

TEST_P(Conversion, EveryElementToFloat) {
  std::vector<std::uint32_t> in(65536);
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i] = i;
  const std::vector<std::uint32_t> out =
      convert("vq::host::bits<vq::u32>(vq::to_float<" + element() + ">(x))", in);
  for (std::uint32_t i = 0; i < in.size(); ++i) {
    const float expected = element_to_float(GetParam(), static_cast<std::uint16_t>(i));
    if (expected != expected) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(out[i]))) << i;
    } else {
      ASSERT_EQ(out[i], std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

TEST_P(Conversion, ManyFloatsToElement) {
  // Every element with its neighbours, every midpoint of two elements with its neighbours, and
  // random bits.
  std::vector<std::uint32_t> in;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits =
        std::bit_cast<std::uint32_t>(element_to_float(GetParam(), static_cast<std::uint16_t>(i)));
    const std::uint32_t half = GetParam() == DType::f16 ? 0x1000u : 0x8000u;
    for (const std::uint32_t centre : {bits, bits + half}) {
      for (const std::uint32_t near : {centre - 1, centre, centre + 1}) in.push_back(near);
    }
  }
  for (std::uint32_t i = 0; i < 0x1800; ++i) {  // f16 subnormals have midpoints of their own
    in.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(i) * 0x1p-26f));
  }
  std::mt19937 random(1);
  while (in.size() % (256 * kPerThread) != 0 || in.size() < 800000) {
    in.push_back(static_cast<std::uint32_t>(random()));
  }
  const std::vector<std::uint32_t> out =
      convert("vq::u32{vq::from_float<" + element() + ">(vq::host::bits<float>(x))}", in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], element_from_float(GetParam(), std::bit_cast<float>(in[i])))
        << std::hex << in[i];
  }
}

double value_of(DType dtype, std::uint32_t bits) {
  return static_cast<double>(element_to_float(dtype, static_cast<std::uint16_t>(bits)));
}

// True if `sum` is the element nearest to `exact` (the even one on ties), judged by its neighbours
// in double.
bool nearest(DType dtype, double exact, std::uint16_t sum) {
  const auto value = [dtype](std::uint32_t bits) { return value_of(dtype, bits); };
  if (std::isnan(exact)) return std::isnan(value(sum));
  if (std::isinf(exact) || std::isinf(value(sum))) {
    return sum == element_from_float(dtype, static_cast<float>(exact));
  }
  const double miss = std::abs(value(sum) - exact);
  for (const std::uint32_t next : {sum - 1u, sum + 1u}) {
    if ((next & 0x7fffu) == 0x7fffu || (sum & 0x7fffu) == 0) continue;  // across zero
    const double other = std::abs(value(next) - exact);
    if (other < miss || (other == miss && sum % 2 == 1)) return false;
  }
  return true;
}
bool nearest_sum(DType dtype, std::uint16_t a, std::uint16_t b, std::uint16_t sum) {
  const double exact = value_of(dtype, a) + value_of(dtype, b);
  // Nonzero sums that round to zero do not exist.
  return nearest(dtype, exact, sum) && ((sum & 0x7fffu) != 0 || std::isnan(exact) || exact == 0);
}

TEST_P(Conversion, SumsOfPairsAreRoundedOnce) {
  std::mt19937 random(2);
  std::vector<std::uint32_t> in(256 * kPerThread * 8);
  for (std::uint32_t& word : in) word = static_cast<std::uint32_t>(random());
  // The other operand: random, but every second one is about the same size.
  const std::string other = "(x % 2 == 0 ? x * 2654435761u : x ^ 0x80138007u)";
  const auto out = convert("vq::add2<" + element() + ">(x, " + other + ")", in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint32_t x = in[i];
    const std::uint32_t y = x % 2 == 0 ? x * 2654435761u : x ^ 0x80138007u;
    for (const int half : {0, 16}) {
      const auto bits = [half](std::uint32_t word) {
        return static_cast<std::uint16_t>(word >> half);
      };
      ASSERT_TRUE(nearest_sum(GetParam(), bits(x), bits(y), bits(out[i])))
          << std::hex << bits(x) << " + " << bits(y) << " = " << bits(out[i]);
    }
  }
}

// The addend of every second pair: about the negated product, or 2^-11 times that, for which a sum
// rounded twice would be wrong.
TEST_P(Conversion, FusedPairsAreRoundedOnce) {
  std::mt19937 random(3);
  std::vector<std::uint32_t> in(256 * kPerThread * 8);
  for (std::uint32_t& word : in) {
    // Magnitudes within 2^-8 .. 2^8, so that products and sums have normal elements.
    word = static_cast<std::uint32_t>(random());
    const std::uint32_t exponents = GetParam() == DType::f16 ? 0x1c001c00u : 0x03800380u;
    const std::uint32_t all = GetParam() == DType::f16 ? 0x7c007c00u : 0x7f807f80u;
    word = (word & ~all) |
           ((word & exponents) + (GetParam() == DType::f16 ? 0x2c002c00u : 0x3e003e00u));
  }
  const std::string other = "(x * 2654435761u & 0x83ff83ffu | 0x3c003c00u)";
  const std::string third = "(x % 2 == 0 ? x ^ 0x80008000u : (x ^ 0x00118004u) - 0x0c000c00u)";
  const auto out = convert("vq::fused2<" + element() + ">(x, " + other + ", " + third + ")", in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint32_t x = in[i];
    const std::uint32_t y = (x * 2654435761u & 0x83ff83ffu) | 0x3c003c00u;
    const std::uint32_t z = x % 2 == 0 ? x ^ 0x80008000u : (x ^ 0x00118004u) - 0x0c000c00u;
    for (const int half : {0, 16}) {
      const auto value = [&](std::uint32_t word) { return value_of(GetParam(), word >> half); };
      const double exact = value(x) * value(y) + value(z);  // in double: elements are near
      ASSERT_TRUE(nearest(GetParam(), exact, static_cast<std::uint16_t>(out[i] >> half)))
          << std::hex << x << " * " << y << " + " << z << " = " << out[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, Conversion, testing::Values(DType::f16, DType::bf16),
                         [](const auto& each) {
                           return std::string(each.param == DType::f16 ? "F16" : "BF16");
                         });

}  // namespace
}  // namespace vqgen::host_test

// Scales of groups of inputs: their words, and what encoding and training make of them.
#include <cmath>

#include "quantizer/group_scales.h"
#include "quantizer/pack.h"
#include "quantizer/train/train.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_tensor;

VqFormat grouped_format(int inputs, int bits) {
  VqFormat format = samples::table_format(4, 6);
  format.group_inputs = inputs;
  format.group_scale_bits = bits;
  return format;
}

// Multiplies each group of 32 by 2^(times * step), steps -3 to 3.
FloatTensor with_steps(FloatTensor tensor, int times) {
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    for (std::size_t i = 0; i < 512; ++i) {
      const auto step = static_cast<int>((static_cast<std::size_t>(row) * 5 + i / 32) % 7) - 3;
      tensor.row(row)[i] *= std::ldexp(1.0f, times * step);
    }
  }
  return tensor;
}
FloatTensor uneven_tensor() { return with_steps(normal_tensor(1, 1, 64, 512, 5), 1); }

void expect_same(const std::vector<GroupFactor>& factors, const std::vector<GroupFactor>& wanted) {
  ASSERT_EQ(factors.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(factors[i].scale, wanted[i].scale) << i;
    EXPECT_EQ(factors[i].minimum, wanted[i].minimum) << i;
  }
}

TEST(GroupScales, WordsHoldTheNearestScales) {
  // 3 bits: numbers over word borders; largest 15 d.
  const VqFormat format = grouped_format(16, 3);
  std::vector<GroupFactor> wanted(32);
  for (std::size_t i = 0; i < 32; ++i) wanted[i].scale = static_cast<float>(i % 16) + 0.25f;
  wanted[15].scale = 15.0f;
  wanted[31].scale = 30.0f;
  const std::vector<std::uint32_t> words = group_factor_words(format, wanted, "here");
  ASSERT_EQ(words.size(), 3u + 1);
  const std::vector<GroupFactor> factors = group_factors(format, 512, words);
  for (std::size_t i = 0; i < 32; ++i) {
    const float d = i < 16 ? 1.0f : 2.0f;
    double least = INFINITY;
    for (int s = 0; s < 8; ++s) {
      least = std::min(least, std::abs(double{wanted[i].scale} - double{d} * (2 * s + 1)));
    }
    EXPECT_EQ(std::abs(double{wanted[i].scale} - double{factors[i].scale}), least) << i;
    EXPECT_EQ(factors[i].minimum, 0.0f);
  }
  const VqFormat halves = grouped_format(256, 0);
  const std::vector<GroupFactor> three{{1.5f, 0}, {0.0f, 0}, {65504.0f, 0}};
  expect_same(group_factors(halves, 768, group_factor_words(halves, three, "here")), three);
  const std::vector<GroupFactor> beyond{{1e6f, 0}};
  EXPECT_NE(message_of([&] {
              group_factor_words(halves, beyond, "here");
            }).find("here: the scale 1000000 of a group of inputs is beyond f16"),
            std::string::npos);
}

TEST(GroupScales, WordsHoldMinima) {
  VqFormat format = grouped_format(64, 3);
  format.group_minima = true;
  // Multiples of 1/7 of the largest of 256 inputs, from 0 to 7; minima of less than 0 become 0.
  std::vector<GroupFactor> wanted{{7, 2},  {3, 14}, {0, 4}, {6, 0},
                                  {14, 0}, {2, 0},  {4, 0}, {8, -3}};
  const std::vector<std::uint32_t> words = group_factor_words(format, wanted, "here");
  ASSERT_EQ(words.size(), 2u + 2);  // 48 bits, and two words of two f16
  wanted[7].minimum = 0;
  expect_same(group_factors(format, 512, words), wanted);
  format.group_scale_bits = 0;
  expect_same(group_factors(format, 512, group_factor_words(format, wanted, "here")), wanted);
  const std::vector<GroupFactor> beyond{{1, 1e6f}};
  EXPECT_NE(message_of([&] {
              group_factor_words(format, beyond, "here");
            }).find("here: the minimum 1000000 of a group of inputs is beyond f16"),
            std::string::npos);
}

// Groups of one spread around means of 0 to -8.
TEST(GroupScales, MinimaServeGroupsOfDifferentMeans) {
  FloatTensor tensor = normal_tensor(1, 1, 64, 512, 5);
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    for (std::size_t i = 0; i < 512; ++i) {
      tensor.row(row)[i] -= static_cast<float>((static_cast<std::size_t>(row) + i / 32) % 5 * 2);
    }
  }
  const auto error = [&](int bits, bool minima) {
    VqFormat format = grouped_format(32, bits);
    format.group_minima = minima;
    const FloatTensor trained = in_groups(tensor, format, "here");
    const Codebooks codebooks = train_codebooks({"here", format, DType::f16, &trained, {}});
    return reconstruction_error(tensor, reconstruct(encode(tensor, codebooks))).mse;
  };
  EXPECT_LT(error(0, true), 0.8 * error(0, false));
  EXPECT_LT(error(4, true), 1.2 * error(0, true));
}

TEST(GroupScales, ServeGroupsOfDifferentMagnitudes) {
  const FloatTensor tensor = uneven_tensor();
  const auto error = [&](const VqFormat& format) {
    const FloatTensor trained =
        format.group_inputs > 0 ? in_groups(tensor, format, "here") : tensor;
    const Codebooks codebooks = train_codebooks({"here", format, DType::f16, &trained, {}});
    // As if all groups were of one magnitude: small ones count as well.
    const FloatTensor made = with_steps(reconstruct(encode(tensor, codebooks)), -1);
    return reconstruction_error(with_steps(tensor, -1), made).relative;
  };
  const double without = error(grouped_format(0, 0));
  const double halves = error(grouped_format(32, 0));
  EXPECT_LT(halves, 0.7 * without);
  EXPECT_LT(error(grouped_format(32, 4)), 1.15 * halves);
  // Of 3 bits the largest scale is 15 times the least, of these groups 64 times.
  EXPECT_LT(error(grouped_format(32, 3)), 1.5 * halves);
}

TEST(GroupScales, StayBehindCodesInAnyLayout) {
  const FloatTensor tensor = uneven_tensor();
  VqFormat format = grouped_format(32, 4);
  Codebooks codebooks = samples::random_codebooks(format, 1, DType::f16, 4);
  const QuantizedTensor plain = encode(tensor, codebooks);
  EXPECT_EQ(plain.row_words, 512 / 4 * 6 / 32 + 4);
  codebooks.format.layout = {2, 2};
  const QuantizedTensor grouped = encode(tensor, codebooks);
  EXPECT_EQ(decode(grouped).data, decode(plain).data);
  QuantizedTensor repacked = plain;
  repack(repacked, {2, 2});
  EXPECT_EQ(repacked.codes, grouped.codes);
}

TEST(GroupScales, ZerosStayZeros) {
  FloatTensor tensor = uneven_tensor();
  std::fill(tensor.row(3).begin(), tensor.row(3).begin() + 256, 0.0f);
  const FloatTensor decoded =
      decode(encode(tensor, samples::random_codebooks(grouped_format(64, 3), 1, DType::f16, 4)));
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(decoded.row(3)[i], 0.0f);
}

TEST(GroupScales, OfPartsOfARowAreRefused) {
  const FloatTensor tensor = normal_tensor(1, 1, 4, 320, 5);
  const auto refused = [&](int inputs, int bits) {
    return message_of([&] {
      encode(tensor, samples::random_codebooks(grouped_format(inputs, bits), 1, DType::f16, 4));
    });
  };
  EXPECT_NE(refused(128, 0).find("320 inputs are no whole groups of 128"), std::string::npos);
  EXPECT_NE(refused(32, 4).find("320 inputs are no whole blocks of 256"), std::string::npos);
}

}  // namespace
}  // namespace vqgen

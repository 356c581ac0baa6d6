// Scalar codes on the CPU: every code is read, the nearest number is found, and scales clamp
// nothing.
#include "quantizer/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "quantizer/bundle.h"
#include "quantizer/encode.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

VqFormat scalar_format(int vector, Decoder decoder) {
  VqFormat format{.vector_size = vector, .index_bits = 16, .scope = Scope::channel_group};
  format.decoder = decoder;
  return format;
}
const std::vector<VqFormat> kFormats{scalar_format(2, Decoder::scalar),
                                     scalar_format(4, Decoder::scalar),
                                     scalar_format(2, Decoder::e4m3)};

// The numbers that may be written, for the first element.
std::vector<float> numbers_of(const VqFormat& format) {
  const std::vector<float> ones(static_cast<std::size_t>(format.vector_size), 1.0f);
  std::vector<float> point(ones.size());
  std::vector<float> numbers;
  for (std::uint32_t code = 0; code < 1u << (16 / format.vector_size); ++code) {
    scalar_point(format, ones, code, point);
    if (std::abs(point[0]) <= scalar_peak(format)) numbers.push_back(point[0]);
  }
  return numbers;
}

TEST(Scalar, CountsOfNumbers) {
  EXPECT_EQ(numbers_of(kFormats[0]).size(), 255u);
  EXPECT_EQ(numbers_of(kFormats[1]).size(), 15u);
  EXPECT_EQ(numbers_of(kFormats[2]).size(), 254u);
}

TEST(Scalar, TheNearestIsTheNearestOfAll) {
  for (const VqFormat& format : kFormats) {
    const auto size = static_cast<std::size_t>(format.vector_size);
    const std::vector<float> numbers = numbers_of(format);
    const std::vector<float> scales(size, 0.25f);
    const NearestScalars search(format, scales);
    std::vector<float> x = samples::normal_floats(std::int64_t{4096} * format.vector_size, 5);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= std::ldexp(scalar_peak(format) / 8, -(i % 24 == 0 ? 12 : static_cast<int>(i % 3)));
    std::vector<std::uint32_t> codes(4096);
    search.find(x, codes);
    std::vector<float> point(size);
    for (std::size_t at = 0; at < codes.size(); ++at) {
      scalar_point(format, scales, codes[at], point);
      for (std::size_t i = 0; i < size; ++i) {
        const float value = x[at * size + i];
        float least = INFINITY;
        for (const float number : numbers)
          least = std::min(least, std::abs(value - number * 0.25f));
        EXPECT_EQ(std::abs(value - point[i]), least) << short_name(format) << ' ' << value;
      }
    }
  }
}

TEST(Scalar, ScalesClampNothingAndMayBeTiny) {
  for (const VqFormat& format : kFormats) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const float peak : {1e-7f, 3e-5f, 0.1f, 1.0f, 1234.5f, 5e4f}) {
        const float scale = element_to_float(dtype, scalar_scale(format, dtype, peak));
        EXPECT_TRUE(fits_entries(format, scale)) << peak;
        EXPECT_GE(scale * scalar_peak(format), peak);
      }
      EXPECT_EQ(element_to_float(dtype, scalar_scale(format, dtype, 0)), 1.0f);
    }
  }
}

TEST(Scalar, ScalesAreNoZerosInfinitiesOrNaN) {
  for (const VqFormat& format : kFormats) {
    for (const float bad : {0.0f, -1.0f, INFINITY, std::nanf("")}) {
      EXPECT_FALSE(fits_entries(format, bad));
      const FloatTensor tensor = samples::normal_tensor(1, 1, 2, 4, 3);
      const auto units = 4 / format.vector_size;
      Codebooks books{format, DType::f16, units, {}, {}, {}};
      books.entries.assign(4, element_from_float(DType::f16, bad));
      EXPECT_THROW(encode(tensor, books), Error);
    }
  }
}

// The largest element of a token gets the largest number; codes and scale are side by side.
TEST(Scalar, TokensHaveScalesOfTheirOwn) {
  FloatTensor tensor = samples::normal_tensor(1, 2, 5, 16, 4);
  for (float& value : tensor.row(3)) value = 0.0f;
  for (float& value : tensor.row(4)) value = -2.5f;  // constant
  for (const VqFormat& by_channel : kFormats) {
    VqFormat format = by_channel;
    format.scope = Scope::tensor;
    format.token_scales = true;
    for (const CodeLayout layout : {CodeLayout{1, 1}, CodeLayout{4, 1}}) {
      format.layout = layout;
      Codebooks books{format, DType::f16, 1, {}, {}, {}};
      books.entries.assign(static_cast<std::size_t>(format.vector_size),
                           element_from_float(DType::f16, 1.0f));
      const QuantizedTensor coded = encode(tensor, books);
      EXPECT_EQ(coded.row_words, 16 * 16 / format.vector_size / 32 + 1);
      const std::vector<TokenScale> scales = token_scales(coded);
      const FloatTensor decoded = decode(coded);
      ASSERT_EQ(scales.size(), 10u);
      EXPECT_EQ(scales[3].scale, 1.0f);
      EXPECT_EQ(scales[4].scale, 2.5f / scalar_peak(format));
      for (std::int64_t row = 0; row < 10; ++row) {
        const float scale = scales[static_cast<std::size_t>(row)].scale;
        const float step = format.decoder == Decoder::e4m3 ? 16.0f : 0.5f;
        for (std::size_t i = 0; i < 16; ++i) {
          EXPECT_LE(std::abs(decoded.row(row)[i] - tensor.row(row)[i]), scale * step * 1.0001f);
        }
      }
      for (const float value : decoded.row(3)) EXPECT_EQ(value, 0.0f);
      for (const float value : decoded.row(4)) EXPECT_FLOAT_EQ(value, -2.5f);
    }
  }
}

// The format of KIVI's values, with 8 bits too, and with all channels in one group.
VqFormat affine_format(int vector, int together) {
  VqFormat format{.vector_size = vector, .index_bits = 16};
  format.decoder = Decoder::affine;
  format.token_scales = true;
  format.group_channels = together;
  return format;
}
Codebooks ones_of(const VqFormat& format, DType dtype) {
  Codebooks books{format, dtype, 1, {}, {}, {}};
  books.entries.assign(static_cast<std::size_t>(format.vector_size),
                       element_from_float(dtype, 1.0f));
  return books;
}

// KIVI by its formula, with zero and scale rounded to elements: zero = min, scale = (max - min) /
// (2^bits - 1), code = round((x - zero) / scale), x = zero + scale * code.
std::vector<float> by_kivi(std::span<const float> group, int bits, DType dtype) {
  float low = group[0], high = group[0];
  for (const float x : group) {
    if (x < low) low = x;
    if (x > high) high = x;
  }
  const auto steps = static_cast<float>((1 << bits) - 1);
  const float zero = element_to_float(dtype, element_from_float(dtype, low));
  const float scale = element_to_float(dtype, element_from_float(dtype, (high - low) / steps));
  std::vector<float> back;
  for (const float x : group) {
    const float code = scale > 0 ? std::floor((x - zero) / scale + 0.5f) : 0.0f;
    back.push_back(zero + scale * std::min(std::max(code, 0.0f), steps));
  }
  return back;
}

TEST(Scalar, ZerosAndScalesAreKivis) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int vector : {2, 4}) {
      for (const int together : {0, 32, 16}) {
        for (const CodeLayout layout : {CodeLayout{1, 1}, CodeLayout{2, 2}}) {
          VqFormat format = affine_format(vector, together);
          format.layout = layout;
          FloatTensor tensor = samples::normal_tensor(2, 2, 5, 64, 4);
          for (float& x : tensor.row(3)) x = 0.0f;
          for (float& x : tensor.row(4)) x = -2.5f;
          for (float& x : tensor.row(5)) x = x * 0.01f + 7.0f;
          tensor.row(6)[40] = 1000.0f;
          for (float& x : tensor.data) x = element_to_float(dtype, element_from_float(dtype, x));
          const QuantizedTensor coded = encode(tensor, ones_of(format, dtype));
          const std::size_t size = together == 0 ? 64 : static_cast<std::size_t>(together);
          EXPECT_EQ(coded.row_words, 64 * 16 / vector / 32 + static_cast<std::int64_t>(64 / size));
          const FloatTensor decoded = decode(coded);
          for (std::int64_t row = 0; row < tensor.row_count(); ++row) {
            for (std::size_t first = 0; first < 64; first += size) {
              const std::vector<float> expected =
                  by_kivi(tensor.row(row).subspan(first, size), 16 / vector, dtype);
              for (std::size_t i = 0; i < size; ++i) {
                EXPECT_FLOAT_EQ(decoded.row(row)[first + i], expected[i]) << row << ' ' << i;
              }
            }
          }
          for (const float x : decoded.row(4)) EXPECT_EQ(x, -2.5f);
        }
      }
    }
  }
}

// KIVI's keys: a channel of a group of tokens shares zero and scale, and each token's row holds its
// part of the group's words.
TEST(Scalar, GroupsOfTokensAreKivis) {
  for (const CodeLayout layout : {CodeLayout{1, 1}, CodeLayout{4, 1}}) {
    VqFormat format = affine_format(4, 0);
    format.token_scales = false;
    format.group_tokens = 16;
    format.layout = layout;
    FloatTensor tensor = samples::normal_tensor(2, 2, 48, 64, 4);
    for (std::int64_t row = 0; row < 48; ++row) tensor.row(row)[3] = -2.5f;
    for (float& x : tensor.data)
      x = element_to_float(DType::f16, element_from_float(DType::f16, x));
    const QuantizedTensor coded = encode(tensor, ones_of(format, DType::f16));
    EXPECT_EQ(coded.row_words, 8 + 64 / 16);
    const FloatTensor decoded = decode(coded);
    for (std::int64_t first = 0; first < tensor.row_count(); first += 16) {
      for (std::size_t c = 0; c < 64; ++c) {
        std::vector<float> group;
        for (std::int64_t t = 0; t < 16; ++t) group.push_back(tensor.row(first + t)[c]);
        const std::vector<float> expected = by_kivi(group, 4, DType::f16);
        for (std::size_t t = 0; t < 16; ++t) {
          EXPECT_FLOAT_EQ(decoded.row(first + static_cast<std::int64_t>(t))[c], expected[t])
              << first << ' ' << t << ' ' << c;
        }
      }
    }
    AttentionData data;
    data.keys = data.values = coded;
    const auto read_back = [&] {
      return read_bundle(SafetensorsFile(serialize_bundle({{{"a", data}}}), "b"));
    };
    EXPECT_EQ(std::get<AttentionData>(read_back().items.at(0).data).keys.codes, coded.codes);
  }
  VqFormat format = affine_format(4, 0);
  format.token_scales = false;
  format.group_tokens = 32;
  const FloatTensor part = samples::normal_tensor(1, 1, 48, 64, 4);
  EXPECT_NE(message_of([&] {
              encode(part, ones_of(format, DType::f16));
            }).find("48 tokens are no whole groups of 32"),
            std::string::npos);
}

TEST(Scalar, ZerosAndScalesThatAreNoElementsAreRefused) {
  FloatTensor tensor = samples::normal_tensor(1, 1, 1, 32, 4);
  tensor.row(0)[5] = -1e6f;
  const VqFormat format = affine_format(4, 32);
  EXPECT_NE(message_of([&] { encode(tensor, ones_of(format, DType::f16)); }).find("use bf16"),
            std::string::npos);
  encode(tensor, ones_of(format, DType::bf16));
}

TEST(Scalar, ClampedTokensAreCounted) {
  for (VqFormat format : kFormats) {
    FloatTensor tensor = samples::normal_tensor(1, 2, 5, 8, 4);
    for (float& value : tensor.data) value = std::clamp(value, -1.0f, 1.0f);
    Codebooks books{format, DType::f16, 16 / format.vector_size, {}, {}, {}};
    books.entries.assign(16, scalar_scale(format, DType::f16, 1.0f));
    EXPECT_EQ(clamped_rows(tensor, books), 0);
    tensor.row(1)[7] = -1.5f;
    tensor.row(9)[0] = tensor.row(9)[5] = 40.0f;
    EXPECT_EQ(clamped_rows(tensor, books), 2);
    const FloatTensor decoded = decode(encode(tensor, books));
    EXPECT_NEAR(decoded.row(1)[7], -1.0f, 1e-3f);
    EXPECT_NEAR(decoded.row(9)[5], 1.0f, 1e-3f);
    format.token_scales = true;
    EXPECT_EQ(clamped_rows(tensor, {format, DType::f16, 1, {}, {}, {}}), 0);
  }
}

TEST(Scalar, BundlesHoldThemAndNoBadScaleOfAToken) {
  VqFormat by_token = kFormats[0];
  by_token.scope = Scope::tensor;
  by_token.token_scales = true;
  const FloatTensor tensor = samples::normal_tensor(1, 2, 5, 16, 4);
  AttentionData data;
  Codebooks ones{by_token, DType::f16, 1, {}, {}, {}};
  ones.entries.assign(2, element_from_float(DType::f16, 1.0f));
  Codebooks scales{kFormats[0], DType::f16, 16, {}, {}, {}};
  scales.entries.assign(32, element_from_float(DType::f16, 0.03f));
  data.keys = encode(tensor, ones);
  data.values = encode(tensor, scales);
  const auto read_back = [&] {
    return read_bundle(SafetensorsFile(serialize_bundle({{{"a", data}}}), "b"));
  };
  const auto held = std::get<AttentionData>(read_back().items.at(0).data);
  EXPECT_EQ(held.keys.codes, data.keys.codes);
  EXPECT_EQ(held.values.codebooks, data.values.codebooks);
  for (const float bad : {0.0f, -1.0f, INFINITY, std::nanf("")}) {
    data.keys.codes[5 * 9 - 1] = std::bit_cast<std::uint32_t>(bad);
    EXPECT_NE(message_of(read_back).find("the scale of a token is"), std::string::npos) << bad;
  }
  data.keys = encode(tensor, ones_of(affine_format(4, 8), DType::f16));
  EXPECT_EQ(std::get<AttentionData>(read_back().items.at(0).data).keys.codes, data.keys.codes);
  for (const std::uint32_t bad : {0x00008001u, 0x7c000001u, 0x00007c00u, 0x7e000001u}) {
    data.keys.codes[6] = bad;
    EXPECT_NE(message_of(read_back).find("the scale of a token is"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace vqgen

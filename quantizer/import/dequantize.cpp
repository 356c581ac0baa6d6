#include "quantizer/import/dequantize.h"

#include <algorithm>
#include <array>

#include "quantizer/import/iq_blocks.h"
#include "quantizer/import/little_endian.h"

namespace vqgen {
namespace {

void decode_f32(const std::byte* block, float* weights) { std::memcpy(weights, block, 4); }
void decode_f16(const std::byte* block, float* weights) { *weights = f16_at(block); }
void decode_bf16(const std::byte* block, float* weights) {
  *weights = bf16_to_float(static_cast<std::uint16_t>(u16_at(block)));
}

// Calls each(i, number of 4 bits) for 32 weights: the low halves of 16 bytes, then the high ones.
template <class Each>
void each_nibble(const std::byte* at, const Each& each) {
  for (int i = 0; i < 16; ++i) each(i, byte_at(at, i) & 15);
  for (int i = 0; i < 16; ++i) each(i + 16, byte_at(at, i) >> 4);
}

// scale, [minimum], [32 fifth bits], 32 numbers of 4 bits
template <bool kMinimum, bool kFifth>
void decode_legacy(const std::byte* block, float* weights) {
  const float scale = f16_at(block);
  const float minimum = kMinimum ? f16_at(block + 2) : 0;
  const std::byte* const rest = block + (kMinimum ? 4 : 2);
  const std::uint32_t fifth = kFifth ? u32_at(rest) : 0;
  each_nibble(rest + (kFifth ? 4 : 0), [&](int i, unsigned low) {
    const int number = static_cast<int>(low | (fifth >> i & 1) << 4);
    weights[i] = kMinimum ? scale * static_cast<float>(number) + minimum
                          : scale * static_cast<float>(number - (kFifth ? 16 : 8));
  });
}

// scale, 32 x int8
void decode_q8_0(const std::byte* block, float* weights) {
  const float scale = f16_at(block);
  for (int i = 0; i < 32; ++i) {
    weights[i] = scale * static_cast<float>(std::to_integer<std::int8_t>(block[2 + i]));
  }
}

// 16 x {scale, minimum of 4 bits each}, 256 numbers of 2 bits, scale, scale of minima
void decode_q2_k(const std::byte* block, float* weights) {
  const float scale = f16_at(block + 80), minimum = f16_at(block + 82);
  for (int i = 0; i < kIqBlock; ++i) {
    const unsigned both = byte_at(block, i / 16);
    weights[i] = scale * static_cast<float>(both & 15) * static_cast<float>(q2_k_number(block, i)) -
                 minimum * static_cast<float>(both >> 4);
  }
}

// 256 high bits, 256 numbers of 2 bits, 16 scales of 6 bits, scale
void decode_q3_k(const std::byte* block, float* weights) {
  const float scale = f16_at(block + 108);
  const std::byte* const packed = block + 96;
  std::array<float, 16> scales;
  for (int g = 0; g < 16; ++g) {
    const unsigned low = byte_at(packed, g % 8) >> (g / 8 * 4) & 15;
    const unsigned high = byte_at(packed + 8, g % 4) >> (g / 4 * 2) & 3;
    scales[static_cast<std::size_t>(g)] =
        scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
  for (int i = 0; i < kIqBlock; ++i) {
    const unsigned low = byte_at(block + 32, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    const unsigned high = byte_at(block, i % 32) >> (i / 32) & 1;
    const int number = static_cast<int>(low) - (high != 0 ? 0 : 4);
    weights[i] = scales[static_cast<std::size_t>(i / 16)] * static_cast<float>(number);
  }
}

// scale, scale of minima, 8 x {scale, minimum of 6 bits each}, [256 fifth bits], 256 numbers of 4
template <bool kFifth>
void decode_q45_k(const std::byte* block, float* weights) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  const std::byte* const packed = block + 4;
  const std::byte* const fifth = block + 16;
  const std::byte* const numbers = block + (kFifth ? 48 : 16);
  for (int g = 0; g < 8; ++g) {
    unsigned s = byte_at(packed, g % 4), m = byte_at(packed, g % 4 + 4);
    if (g < 4) {
      s &= 63;
      m &= 63;
    } else {
      const unsigned low = byte_at(packed, g + 4);
      s = (low & 15) | (s >> 6) << 4;
      m = low >> 4 | (m >> 6) << 4;
    }
    const float of_group = scale * static_cast<float>(s);
    const float below = minimum * static_cast<float>(m);
    for (int i = 0; i < 32; ++i) {
      const unsigned low = byte_at(numbers, g / 2 * 32 + i) >> (g % 2 * 4) & 15;
      const unsigned high = kFifth ? byte_at(fifth, i) >> g & 1 : 0;
      weights[32 * g + i] = of_group * static_cast<float>(low | high << 4) - below;
    }
  }
}

// 256 numbers of 4 bits, 256 of 2 high bits, 16 x int8 scales, scale
void decode_q6_k(const std::byte* block, float* weights) {
  const float scale = f16_at(block + 208);
  for (int i = 0; i < kIqBlock; ++i) {
    const int half = i / 128, quarter = i / 32 % 4;
    const unsigned low =
        byte_at(block, half * 64 + quarter % 2 * 32 + i % 32) >> (quarter / 2 * 4) & 15;
    const unsigned high = byte_at(block + 128, half * 32 + i % 32) >> (quarter * 2) & 3;
    const auto of_group = std::to_integer<std::int8_t>(block[192 + i / 16]);
    weights[i] = scale * static_cast<float>(of_group) *
                 static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
}

constexpr std::array<float, 16> kIq4{-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// scale, 32 numbers of 4 bits
void decode_iq4_nl(const std::byte* block, float* weights) {
  const float scale = f16_at(block);
  each_nibble(block + 2, [&](int i, unsigned number) { weights[i] = scale * kIq4[number]; });
}

// scale, 8 x 2 high bits and 8 x 4 low bits of scales, 256 numbers of 4 bits
void decode_iq4_xs(const std::byte* block, float* weights) {
  const float scale = f16_at(block);
  const unsigned high = u16_at(block + 2);
  for (int g = 0; g < 8; ++g) {
    const unsigned low = byte_at(block + 4, g / 2) >> (g % 2 * 4) & 15;
    const float of_group =
        scale * static_cast<float>(static_cast<int>(low | (high >> (2 * g) & 3) << 4) - 32);
    each_nibble(block + 8 + 16 * g,
                [&](int i, unsigned number) { weights[32 * g + i] = of_group * kIq4[number]; });
  }
}

template <const IqFormat& kFormat>
void decode_iq(const std::byte* block, float* weights) {
  IqBlock taken_apart;
  kFormat.split(block, taken_apart);
  join(kFormat, taken_apart, weights);
}

template <int kBlock, int kBytes, void (*kDecode)(const std::byte*, float*)>
void decode_all(const std::byte* blocks, std::size_t count, float* weights) {
  for (std::size_t i = 0; i < count; ++i) kDecode(blocks + i * kBytes, weights + i * kBlock);
}

// A type whose blocks are decoded, and one that is refused.
template <int kBlock, int kBytes, void (*kDecode)(const std::byte*, float*)>
constexpr GgufType decoded(std::uint32_t id, const char* name) {
  return {id, name, kBlock, kBytes, decode_all<kBlock, kBytes, kDecode>};
}
template <int kBytes, const IqFormat& kFormat>
constexpr GgufType with_codebook(std::uint32_t id, const char* name) {
  GgufType type = decoded<kIqBlock, kBytes, decode_iq<kFormat>>(id, name);
  type.iq = &kFormat;
  return type;
}
constexpr GgufType refused(std::uint32_t id, const char* name) { return {id, name, 0, 0, nullptr}; }

constexpr GgufType kTypes[] = {decoded<1, 4, decode_f32>(0, "F32"),
                               decoded<1, 2, decode_f16>(1, "F16"),
                               decoded<32, 18, decode_legacy<false, false>>(2, "Q4_0"),
                               decoded<32, 20, decode_legacy<true, false>>(3, "Q4_1"),
                               decoded<32, 22, decode_legacy<false, true>>(6, "Q5_0"),
                               decoded<32, 24, decode_legacy<true, true>>(7, "Q5_1"),
                               decoded<32, 34, decode_q8_0>(8, "Q8_0"),
                               refused(9, "Q8_1"),
                               decoded<256, 84, decode_q2_k>(kQ2KType, "Q2_K"),
                               decoded<256, 110, decode_q3_k>(11, "Q3_K"),
                               decoded<256, 144, decode_q45_k<false>>(12, "Q4_K"),
                               decoded<256, 176, decode_q45_k<true>>(13, "Q5_K"),
                               decoded<256, 210, decode_q6_k>(14, "Q6_K"),
                               refused(15, "Q8_K"),
                               with_codebook<66, kIq2Xxs>(16, "IQ2_XXS"),
                               with_codebook<74, kIq2Xs>(17, "IQ2_XS"),
                               with_codebook<98, kIq3Xxs>(18, "IQ3_XXS"),
                               with_codebook<50, kIq1S>(19, "IQ1_S"),
                               decoded<32, 18, decode_iq4_nl>(20, "IQ4_NL"),
                               with_codebook<110, kIq3S>(21, "IQ3_S"),
                               with_codebook<82, kIq2S>(22, "IQ2_S"),
                               decoded<256, 136, decode_iq4_xs>(23, "IQ4_XS"),
                               refused(24, "I8"),
                               refused(25, "I16"),
                               refused(26, "I32"),
                               refused(27, "I64"),
                               refused(28, "F64"),
                               with_codebook<56, kIq1M>(29, "IQ1_M"),
                               decoded<1, 2, decode_bf16>(30, "BF16"),
                               refused(34, "TQ1_0"),
                               refused(35, "TQ2_0"),
                               refused(39, "MXFP4"),
                               refused(40, "NVFP4"),
                               refused(41, "Q1_0")};

}  // namespace

unsigned q2_k_number(const std::byte* block, int i) {
  return byte_at(block + 16, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
}

const GgufType* find_gguf_type(std::uint32_t id) {
  const auto* const found = std::ranges::find(kTypes, id, &GgufType::id);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace vqgen

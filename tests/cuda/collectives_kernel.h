// Kernels that use every collective of a warp and the atomics, as text for both machines, with
// input and the check of the output. Both take struct Args { const u32* in; u32* out; }.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/element.h"

namespace vqgen::test {

// collectives<E>: one warp. `in` has, in words: A 16x16 and its transpose, B as [n][k] and as
// [k][n], C 16x8; for the integers A 16x32, B [n][k] and C 16x8; 32 words, 64 floats.
inline constexpr std::size_t kInA = 0, kInAt = 128, kInB = 256, kInBt = 320, kInC = 384;
inline constexpr std::size_t kInA8 = 512, kInB8 = 640, kInC8 = 704, kInWords = 832;
inline constexpr std::size_t kInFloats = 864, kCollectivesIn = 928;
// `out` has, in words: D twice, D of the integers, fragments of A, movmatrix, shuffles of a word
// and of a float, byte_permute, pack2, which products the machine has, and votes.
inline constexpr std::size_t kOutD = 0, kOutDt = 128, kOutD8 = 256, kOutA = 384, kOutMoved = 512;
inline constexpr std::size_t kOutShuffled = 544, kOutShuffledFloat = 576, kOutPermuted = 608;
inline constexpr std::size_t kOutPacked = 640, kOutHas = 672, kOutVotes = 674;
inline constexpr std::size_t kOutScaledByte = 706;  // [byte of the word][lane]
inline constexpr std::size_t kOutDot2 = 834;        // [pair of bytes][lane]
inline constexpr std::size_t kOutLarger = 898;      // [lane]
inline constexpr std::size_t kOutD8u = 930;         // D of the integers, b unsigned
inline constexpr std::size_t kOutDu8 = 1058;        // the same, a unsigned
inline constexpr std::size_t kCollectivesOut = 1186;
inline constexpr std::int64_t kCollectivesSharedBytes = 4 * 832;

// last_block: kLastBlocks blocks of 64 threads; in[0] is the counter, words from in[64] on.
inline constexpr unsigned kLastBlocks = 7;
inline constexpr std::size_t kLastIn = 64 + 64 * kLastBlocks, kLastOut = 128 + 64 * kLastBlocks;

inline constexpr std::string_view kCollectivesText = R"(
namespace vq {
template <Element E>
VQ_DEVICE void collectives(const u32* in, u32* out) {
  u32* const row = reinterpret_cast<u32*>(shared_memory());
  const int l = lane();
  for (int i = l; i < 832; i += 32) store_shared(row + i, load_global(in + i));
  sync_warp();
  u32 a[4], at[4], b[2], bt[2], a8[4], b8[2];
  ldmatrix_x4(a, row + l % 16 * 8 + l / 16 * 4);
  ldmatrix_x4_trans(at, row + 128 + (l % 8 + l / 16 * 8) * 8 + l / 8 % 2 * 4);
  ldmatrix_x2(b, row + 256 + l % 8 * 8 + l / 8 % 2 * 4);
  ldmatrix_x2(bt, row + 320 + l % 16 * 4);
  VQ_UNROLL
  for (int i = 0; i < 2; ++i) bt[i] = movmatrix_trans(bt[i]);
  ldmatrix_x4(a8, row + 512 + l % 16 * 8 + l / 16 * 4);
  ldmatrix_x2(b8, row + 640 + l % 8 * 8 + l / 8 % 2 * 4);
  if constexpr (kHasMma<E>) {
    float c[4], ct[4];
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int place = (l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2;
      c[i] = ct[i] = load_shared(reinterpret_cast<const float*>(row) + 384 + place);
    }
    mma_m16n8k16<E>(c, a, b);
    mma_m16n8k16<E>(ct, at, bt);
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int place = (l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2;
      store_global(reinterpret_cast<float*>(out) + place, c[i]);
      store_global(reinterpret_cast<float*>(out) + 128 + place, ct[i]);
    }
  }
  if constexpr (kHasMmaS8) {
    i32 c[4], cu[4], uc[4];
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int place = (l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2;
      c[i] = cu[i] = uc[i] = load_shared(reinterpret_cast<const i32*>(row) + 704 + place);
    }
    mma_m16n8k32_s8(c, a8, b8);
    mma_m16n8k32_s8_u8(cu, a8, b8);
    mma_m16n8k32_u8_s8(uc, a8, b8);
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int place = (l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2;
      store_global(reinterpret_cast<i32*>(out) + 256 + place, c[i]);
      store_global(reinterpret_cast<i32*>(out) + 930 + place, cu[i]);
      store_global(reinterpret_cast<i32*>(out) + 1058 + place, uc[i]);
    }
  }
  VQ_UNROLL
  for (int i = 0; i < 4; ++i) store_global(out + 384 + 32 * i + l, a[i]);
  store_global(out + 512 + l, movmatrix_trans(a[0]));
  const u32 word = load_global(in + 832 + l);
  const float* const floats = reinterpret_cast<const float*>(in) + 864;
  store_global(out + 544 + l, shuffle(word, (l * 7 + 3) % 32));
  store_global(reinterpret_cast<float*>(out) + 576 + l, shuffle(load_global(floats + l), 31 - l));
  store_global(out + 608 + l, byte_permute(word, shuffle(word, l ^ 1), shuffle(word, l ^ 2)));
  store_global(out + 640 + l, pack2<E>(load_global(floats + l), load_global(floats + 32 + l)));
  VQ_UNROLL
  for (int i = 0; i < 4; ++i) {
    const u32 factor = i % 2 == 0 ? 256u : 65535u;
    store_global(out + 706 + 32 * i + l, add_scaled_byte(word, i, factor, 0xfffff000u + word));
  }
  VQ_UNROLL
  for (int i = 0; i < 2; ++i) {
    const i32 sum = dot2(shuffle(word, l ^ 1), word, i, static_cast<i32>(word >> 4));
    store_global(out + 834 + 32 * i + l, static_cast<u32>(sum));
  }
  store_global(out + 898 + l, larger_halves(word, shuffle(word, l ^ 1)));
  u32 votes = 0;  // bit i: does any lane have a word below i 2^27?
  for (u32 i = 0; i < 32; ++i) votes |= any_of_warp(word < i << 27) ? 1u << i : 0u;
  store_global(out + 674 + l, votes);
  if (l == 0) {
    store_global(out + 672, kHasMma<E> ? 1u : 0u);
    store_global(out + 673, kHasMmaS8 ? 1u : 0u);
  }
}

VQ_DEVICE void last_block(const u32* in, u32* out) {
  u32* const ticket = reinterpret_cast<u32*>(shared_memory());
  u32* const partials = out + 128;
  const int t = thread_index();
  const int mine = block_x() * 64 + t;
  store_global(partials + mine, 3u * load_global(in + 64 + mine));
  sync_block();
  if (t == 0) store_shared(ticket, atomic_add_global(const_cast<u32*>(in), 1u));
  sync_block();
  if (load_shared(ticket) != 6u) return;
  u32 sum = 0;
  u32 other = 0;
  for (int b = 0; b < 7; ++b) {
    const u32* const from = partials + 64 * b;
    sum += load_global_coherent(from + t);
    const auto word_at = [from](int i) { return load_global_coherent(from + i); };
    if (t < 16) {
      other += word_at(4 * t) + 2 * word_at(4 * t + 1) + 3 * word_at(4 * t + 2) + 4 * word_at(4 * t + 3);
    } else if (t < 32) {
      other += word_at(2 * t) + 2 * word_at(2 * t + 1);
    } else if (t < 48) {
      other += word_at(t / 2) >> t % 2 * 16 & 0xffffu;
    } else {
      const i32 word = load_global_coherent(reinterpret_cast<const i32*>(from) + t);
      const float same = load_global_coherent(reinterpret_cast<const float*>(from) + t);
      other += static_cast<u32>(word) + (same != same ? 1u : 0u);
    }
  }
  store_global(out + t, sum);
  store_global(out + 64 + t, other);
}
}  // namespace vq
)";

struct Collectives {
  bool bf16 = false;
  std::vector<std::uint32_t> in = std::vector<std::uint32_t>(kCollectivesIn);

  // Integers give exact sums in every order.
  Collectives(bool is_bf16, bool integers, std::uint64_t seed) : bf16(is_bf16) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (std::uint32_t& word : in) word = static_cast<std::uint32_t>(random());
    const auto real = [&] {
      const int whole = static_cast<int>(random() % 2001) - 1000;
      return integers ? static_cast<float>(whole % 5) : static_cast<float>(whole) / 333.0f;
    };
    for (std::size_t m = 0; m < 16; ++m) {
      for (std::size_t k = 0; k < 16; ++k) {
        const std::uint16_t bits = narrow(real());
        set_half(kInA, m * 16 + k, bits);
        set_half(kInAt, k * 16 + m, bits);
      }
      for (std::size_t n = 0; n < 8; ++n) {
        const std::uint16_t bits = narrow(real());  // m is k here
        set_half(kInB, n * 16 + m, bits);
        set_half(kInBt, m * 8 + n, bits);
        in[kInC + m * 8 + n] = std::bit_cast<std::uint32_t>(real());
      }
    }
    for (std::size_t i = 0; i < 64; ++i) {
      in[kInFloats + i] =
          std::bit_cast<std::uint32_t>(std::ldexp(real(), static_cast<int>(i) - 32));
    }
    in[kInFloats] = std::bit_cast<std::uint32_t>(1.0f + 0x1p-11f);      // a tie of f16
    in[kInFloats + 1] = std::bit_cast<std::uint32_t>(-1.0f - 0x3p-9f);  // and of bf16
    in[kInFloats + 2] = 0x7f800000u;
  }

  std::uint16_t narrow(float value) const {
    return bf16 ? bf16_from_float(value) : f16_from_float(value);
  }
  float widen(std::size_t at, std::size_t i) const {
    const std::uint16_t bits = half(at, i);
    return bf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  std::uint16_t half(std::size_t at, std::size_t i) const {
    return static_cast<std::uint16_t>(in[at + i / 2] >> 16 * (i % 2));
  }
  void set_half(std::size_t at, std::size_t i, std::uint16_t bits) {
    std::uint32_t& word = in[at + i / 2];
    word = i % 2 == 0 ? (word & 0xffff0000u) | bits : (word & 0xffffu) | std::uint32_t{bits} << 16;
  }
  int byte(std::size_t at, std::size_t i) const {
    return static_cast<std::int8_t>(in[at + i / 4] >> 8 * (i % 4));
  }
  float real(std::size_t at) const { return std::bit_cast<float>(in[at]); }

  // `tolerance` of a sum, relative to the sizes of its terms; 0: fp32 in the order of k, to the
  // bit.
  void judge(const std::vector<std::uint32_t>& out, double tolerance) const {
    ASSERT_EQ(out.size(), kCollectivesOut);
    for (std::size_t m = 0; m < 16; ++m) {
      for (std::size_t n = 0; n < 8; ++n) judge_sum(out, m, n, tolerance);
    }
    for (std::size_t lane = 0; lane < 32; ++lane) judge_lane(out, lane);
  }

 private:
  void judge_sum(const std::vector<std::uint32_t>& out, std::size_t m, std::size_t n,
                 double tolerance) const {
    float sum = real(kInC + m * 8 + n);
    double size = std::abs(static_cast<double>(sum));
    for (std::size_t k = 0; k < 16; ++k) {
      const float product = widen(kInA, m * 16 + k) * widen(kInB, n * 16 + k);
      sum += product;
      size += std::abs(static_cast<double>(product));
    }
    for (const std::size_t d : {kOutD, kOutDt}) {
      if (out[kOutHas] == 0) break;
      const auto got = static_cast<double>(std::bit_cast<float>(out[d + m * 8 + n]));
      EXPECT_TRUE(std::abs(got - static_cast<double>(sum)) <= tolerance * size)
          << d << ": " << m << ' ' << n << ": " << got << " for " << sum;
    }
    std::uint32_t integer = in[kInC8 + m * 8 + n];
    std::uint32_t of_unsigned = integer, from_unsigned = integer;
    for (std::size_t k = 0; k < 32; ++k) {
      const int a = byte(kInA8, m * 32 + k), b = byte(kInB8, n * 32 + k);
      integer += static_cast<std::uint32_t>(a * b);
      of_unsigned += static_cast<std::uint32_t>(a * (b & 0xff));
      from_unsigned += static_cast<std::uint32_t>((a & 0xff) * b);
    }
    if (out[kOutHas + 1] != 0) {
      EXPECT_EQ(out[kOutD8 + m * 8 + n], integer) << m << ' ' << n;
      EXPECT_EQ(out[kOutD8u + m * 8 + n], of_unsigned) << m << ' ' << n;
      EXPECT_EQ(out[kOutDu8 + m * 8 + n], from_unsigned) << m << ' ' << n;
    }
  }

  // The layout of the PTX ISA, with g = lane / 4 and t = lane % 4, not of the emulation's maps.
  void judge_lane(const std::vector<std::uint32_t>& out, std::size_t lane) const {
    const std::size_t g = lane / 4;
    const std::size_t t = lane % 4;
    const std::size_t rows[] = {g, g + 8, g, g + 8};
    const std::size_t columns[] = {2 * t, 2 * t, 2 * t + 8, 2 * t + 8};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(out[kOutA + 32 * i + lane], in[kInA + (rows[i] * 16 + columns[i]) / 2]) << lane;
    }
    const std::uint32_t moved =
        half(kInA, 2 * t * 16 + g) | std::uint32_t{half(kInA, (2 * t + 1) * 16 + g)} << 16;
    EXPECT_EQ(out[kOutMoved + lane], moved) << lane;
    const std::uint32_t* words = in.data() + kInWords;
    EXPECT_EQ(out[kOutShuffled + lane], words[(lane * 7 + 3) % 32]) << lane;
    EXPECT_EQ(out[kOutShuffledFloat + lane], in[kInFloats + 31 - lane]) << lane;
    std::uint32_t permuted = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t nibble = words[lane ^ 2] >> 4 * i & 15u;
      const std::uint32_t from = (nibble & 4u) != 0 ? words[lane ^ 1] : words[lane];
      const std::uint32_t chosen = from >> 8 * (nibble & 3u) & 0xffu;
      const std::uint32_t sign = (chosen & 0x80u) != 0 ? 0xffu : 0u;
      permuted |= ((nibble & 8u) != 0 ? sign : chosen) << 8 * i;
    }
    EXPECT_EQ(out[kOutPermuted + lane], permuted) << lane;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t byte = words[lane] / (1u << 8 * i) % 256;
      EXPECT_EQ(out[kOutScaledByte + 32 * i + lane],
                0xfffff000u + words[lane] + byte * (i % 2 == 0 ? 256u : 65535u))
          << lane;
    }
    for (std::size_t pair = 0; pair < 2; ++pair) {
      std::int64_t sum = words[lane] >> 4;
      for (std::size_t i = 0; i < 2; ++i) {
        const auto half = static_cast<std::int16_t>(words[lane ^ 1] >> 16 * i & 0xffffu);
        const auto byte = static_cast<std::int8_t>(words[lane] >> 8 * (2 * pair + i) & 0xffu);
        sum += std::int64_t{half} * byte;
      }
      EXPECT_EQ(static_cast<std::int32_t>(out[kOutDot2 + 32 * pair + lane]), sum) << lane;
    }
    const std::uint32_t next = words[lane ^ 1];
    EXPECT_EQ(out[kOutLarger + lane], std::max(words[lane] & 0xffffu, next & 0xffffu) |
                                          std::max(words[lane] >> 16, next >> 16) << 16)
        << lane;
    const std::uint32_t packed =
        narrow(real(kInFloats + lane)) | std::uint32_t{narrow(real(kInFloats + 32 + lane))} << 16;
    EXPECT_EQ(out[kOutPacked + lane], packed) << lane;
    std::uint32_t votes = 0;
    for (std::uint32_t i = 0; i < 32; ++i) {
      for (std::size_t other = 0; other < 32; ++other) {
        if (in[kInWords + other] < i << 27) votes |= 1u << i;
      }
    }
    EXPECT_EQ(out[kOutVotes + lane], votes) << lane;
  }
};

inline std::vector<std::uint32_t> last_block_in() {
  std::vector<std::uint32_t> in(kLastIn);
  for (std::size_t i = 64; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i * i);
  return in;
}

inline void judge_last_block(const std::vector<std::uint32_t>& out) {
  ASSERT_EQ(out.size(), kLastOut);
  const std::vector<std::uint32_t> in = last_block_in();
  for (std::uint32_t t = 0; t < 64; ++t) {
    std::uint32_t sum = 0;
    std::uint32_t other = 0;
    for (std::size_t b = 0; b < kLastBlocks; ++b) {
      const auto partial = [&](std::size_t i) { return 3 * in[64 + 64 * b + i]; };
      sum += partial(t);
      if (t < 16) {
        for (std::uint32_t i = 0; i < 4; ++i) other += (i + 1) * partial(4 * t + i);
      } else if (t < 32) {
        other += partial(2 * t) + 2 * partial(2 * t + 1);
      } else if (t < 48) {
        other += partial(t / 2) >> 16 * (t % 2) & 0xffffu;
      } else {
        other += partial(t);
      }
    }
    EXPECT_EQ(out[t], sum) << t;
    EXPECT_EQ(out[64 + t], other) << t;
  }
}

}  // namespace vqgen::test

// A kernel of warpgroup products, as text for both machines, with input and the check of the
// output. Two warpgroups multiply A [128][64] with x^T, x [columns][64], in four products each; x
// is in core matrices in one of two orders. For bytes, A is [128][128] and x [columns][128], in as
// many words.
//
// Takes struct Args { const u32* in; u32* out; }: A, then x; y [128][columns] in fp32 or integers.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/element.h"

namespace vqgen::test {

inline constexpr std::size_t kGroupRows = 128, kGroupK = 64;
inline constexpr unsigned kGroupThreads = 256;

inline constexpr std::string_view kWarpgroupText = R"(
namespace vq {
template <Element E, int kColumns, bool kRowsFirst, bool kBytes>
VQ_DEVICE void group_product(const u32* in, u32* out) {
  constexpr int kOctetBytes = kRowsFirst ? kColumns * kCoreRowBytes : kCoreBytes;
  constexpr int kRowsBytes = kRowsFirst ? kCoreBytes : 8 * kCoreBytes;
  constexpr u64 kCores = core_descriptor(0, kOctetBytes, kRowsBytes);
  const u32* const x = in + 128 * 32;
  u8* const at = shared_memory() + 256;
  for (int i = thread_index(); i < kColumns * 8; i += 256) {
    const u32 row = core_row(kCores, i / 8, i % 8);
    store_shared(reinterpret_cast<U32x4*>(at + row),
                 load_global(reinterpret_cast<const U32x4*>(x) + i));
  }
  fence_shared();
  sync_block();
  const u64 b = warpgroup_operand(at, kOctetBytes, kRowsBytes);
  const int g = lane() / 4;
  const int t = lane() % 4;
  using Sum = Either<kBytes, i32, float>;
  Sum c[kColumns / 2];
  u32 a[4][4];
  VQ_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) c[i] = 0;
  warpgroup_hold(c);
  VQ_UNROLL
  for (int k = 0; k < 4; ++k) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = warp() * 16 + g + i % 2 * 8;
      a[k][i] = warpgroup_copy(load_global(in + row * 32 + k * 8 + t + i / 2 * 4));
    }
  }
  warpgroup_fence();
  VQ_UNROLL
  for (int k = 0; k < 4; ++k) {
    if constexpr (!kBytes) {
      warpgroup_mma<E, kColumns>(c, a[k], advanced(b, 2 * k * kOctetBytes));
    } else {
      warpgroup_mma_s8<kColumns>(c, a[k], advanced(b, 2 * k * kOctetBytes));
    }
    if (k == 1) warpgroup_commit();
  }
  warpgroup_commit();
  warpgroup_wait<0>();
  warpgroup_hold(c);
  VQ_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = warp() * 16 + g + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + t * 2 + i % 2;
    store_global(reinterpret_cast<Sum*>(out) + row * kColumns + column, c[i]);
  }
}
}  // namespace vq
)";

struct GroupProduct {
  bool bf16 = false;
  bool bytes = false;
  std::size_t columns = 8;
  bool rows_first = true;
  std::vector<std::uint32_t> in = {};

  // Small integers, whose sums are exact in every order, or any bytes.
  GroupProduct(bool is_bf16, bool of_bytes, std::size_t n, bool by_rows)
      : bf16(is_bf16),
        bytes(of_bytes),
        columns(n),
        rows_first(by_rows),
        in((kGroupRows + n) * kGroupK / 2) {
    std::mt19937 random(static_cast<unsigned>(n));
    if (bytes) {
      for (std::uint32_t& word : in) word = static_cast<std::uint32_t>(random());
      return;
    }
    const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 15) - 7); };
    for (std::uint32_t& word : in) {
      word = narrow(small());
      word |= std::uint32_t{narrow(small())} << 16;
    }
  }

  std::string name() const {
    return std::string(bytes  ? "s8_"
                       : bf16 ? "bf16_"
                              : "f16_") +
           std::to_string(columns) + (rows_first ? "_rows_first" : "");
  }
  // The body of its kernel.
  std::string call() const {
    return std::string("vq::group_product<vq::Element::") + (bf16 ? "bf16, " : "f16, ") +
           std::to_string(columns) + (rows_first ? ", true" : ", false") +
           (bytes ? ", true" : ", false") + ">(args.in, args.out);";
  }
  std::int64_t shared_bytes() const {
    return 256 + static_cast<std::int64_t>(columns * kGroupK * 2);
  }
  std::size_t out_words() const { return kGroupRows * columns; }

  void judge(const std::vector<std::uint32_t>& out) const {
    ASSERT_EQ(out.size(), out_words());
    for (std::size_t row = 0; row < kGroupRows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) {
        if (bytes) {
          std::int32_t whole = 0;
          for (std::size_t k = 0; k < 2 * kGroupK; ++k) {
            whole += byte(row * 2 * kGroupK + k) * byte((kGroupRows + column) * 2 * kGroupK + k);
          }
          EXPECT_EQ(static_cast<std::int32_t>(out[row * columns + column]), whole)
              << name() << ' ' << row << ' ' << column;
          continue;
        }
        float sum = 0;
        for (std::size_t k = 0; k < kGroupK; ++k) {
          sum += value(row * kGroupK + k) * value((kGroupRows + column) * kGroupK + k);
        }
        EXPECT_EQ(std::bit_cast<float>(out[row * columns + column]), sum)
            << name() << ' ' << row << ' ' << column;
      }
    }
  }

 private:
  std::uint16_t narrow(float real) const {
    return bf16 ? bf16_from_float(real) : f16_from_float(real);
  }
  std::int32_t byte(std::size_t i) const {
    return static_cast<std::int8_t>(in[i / 4] >> 8 * (i % 4));
  }
  float value(std::size_t i) const {
    const auto half = static_cast<std::uint16_t>(in[i / 2] >> 16 * (i % 2));
    return bf16 ? bf16_to_float(half) : f16_to_float(half);
  }
};

// Every number of columns, both elements and bytes, both orders.
inline std::vector<GroupProduct> group_products() {
  std::vector<GroupProduct> all;
  for (std::size_t columns = 8; columns <= 256; columns *= 2) {
    for (const bool bf16 : {false, true}) {
      for (const bool rows_first : {false, true})
        all.emplace_back(bf16, false, columns, rows_first);
    }
    for (const bool rows_first : {false, true}) all.emplace_back(false, true, columns, rows_first);
  }
  return all;
}

}  // namespace vqgen::test

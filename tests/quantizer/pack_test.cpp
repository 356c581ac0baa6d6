#include "quantizer/pack.h"

#include <gtest/gtest.h>
#include <vq/layout/codes.h>

#include <random>
#include <vector>

namespace vqgen {
namespace {

TEST(Pack, LaysCodesOutLeastSignificantBitFirst) {
  const std::vector<std::uint32_t> codes{0xabc, 0x123, 0xfed};
  std::vector<std::uint32_t> words(2);
  pack_row(codes, 12, words);
  EXPECT_EQ(words[0], 0xabcu | 0x123u << 12 | 0xedu << 24);
  EXPECT_EQ(words[1], 0xfu);
}

TEST(Pack, GivesBackEveryCodeAtEveryWidthAndAwkwardLength) {
  std::mt19937 random(1);
  for (int bits = 2; bits <= 16; ++bits) {
    for (std::size_t count = 1; count <= 70; ++count) {
      std::vector<std::uint32_t> codes(count);
      for (std::uint32_t& code : codes) code = static_cast<std::uint32_t>(random()) >> (32 - bits);
      codes.back() = (1u << bits) - 1;
      const auto words =
          static_cast<std::size_t>(vq::row_words(static_cast<std::int64_t>(count), 1, 1, bits));
      EXPECT_EQ(words, (count * static_cast<std::size_t>(bits) + 31) / 32);

      // Exactly as long as the row, so that a sanitizer sees a word too many; guards show it in a
      // plain build.
      std::vector<std::uint32_t> guarded(words + 2, 0xdeadbeef);
      pack_row(codes, bits, std::span(guarded).subspan(1, words));
      EXPECT_EQ(guarded.front(), 0xdeadbeef);
      EXPECT_EQ(guarded.back(), 0xdeadbeef);
      std::vector<std::uint32_t> row(guarded.begin() + 1, guarded.end() - 1);
      std::vector<std::uint32_t> again(count);
      unpack_row(row, bits, again);
      EXPECT_EQ(again, codes) << bits << " bits, " << count << " codes";

      const int used = static_cast<int>(count * static_cast<std::size_t>(bits) % 32);
      if (used == 0) continue;
      EXPECT_EQ(row.back() >> used, 0u) << "padding bits are zero";
      row.back() |= ~0u << used;
      unpack_row(row, bits, again);
      EXPECT_EQ(again, codes) << "padding bits are ignored";
    }
  }
}

TEST(Pack, AgreesWithTheDeviceLayoutOnWords) {
  EXPECT_EQ(vq::row_words(128 / 4 * 2, 1, 1, 12), vq::row_words(128, 4, 2, 12));
}

}  // namespace
}  // namespace vqgen

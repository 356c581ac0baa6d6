#include "quantizer/import/quip_codes.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/format/e8p.h"

namespace vqgen {
namespace {

// The code of vqgen for an entry and the package's sign bits, whose parity is the shift.
std::uint16_t code_of(std::uint32_t entry, std::uint32_t signs) {
  constexpr int place[] = {0, 4, 1, 5, 2, 6, 3};  // of element i's sign
  const auto shift = static_cast<std::uint32_t>(std::popcount(signs) & 1);
  signs ^= shift;
  std::uint32_t code = entry | shift << 15;
  for (int i = 0; i < 7; ++i) code |= (signs >> place[i] & 1) << (8 + i);
  return static_cast<std::uint16_t>(code);
}

}  // namespace

std::vector<float> quip_table() {
  const std::vector<float> own = e8p_table();
  std::vector<std::array<float, kE8pVectorSize>> entries;
  for (std::size_t i = 0; i < 227; ++i) {
    entries.emplace_back();
    std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(i * kE8pVectorSize), kE8pVectorSize,
                entries.back().begin());
  }
  std::ranges::sort(entries);
  for (const int wide :
       {0xf1, 0xf2, 0xf4, 0xf8, 0x37, 0x57, 0x67, 0x97, 0xa7, 0xc7, 0x3b, 0x5b, 0x6b, 0x9b, 0xab,
        0xcb, 0x3d, 0x5d, 0x6d, 0x9d, 0xad, 0xce, 0x3e, 0x5e, 0x6e, 0x9e, 0xae, 0xec, 0x73}) {
    entries.emplace_back();
    for (int i = 0; i < kE8pVectorSize; ++i) {
      entries.back()[static_cast<std::size_t>(i)] = (wide >> i & 1) == 1 ? 1.5f : 0.5f;
    }
  }
  std::vector<float> table;
  for (const auto& entry : entries) table.insert(table.end(), entry.begin(), entry.end());
  return table;
}

void quip_tile(std::span<const std::uint64_t> words, std::int64_t vectors, std::size_t stages,
               std::size_t stage, std::span<std::uint16_t> codes) {
  for (std::size_t number = 0; number < words.size(); ++number) {
    const std::uint64_t word = words[number];
    const std::size_t c = number / 32, b = number / 4 % 8, d = number % 4;
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint32_t signs = 0;
      for (int j = 0; j < 8; ++j) {
        signs |= static_cast<std::uint32_t>(word >> (32 + 4 * j + static_cast<int>(i)) & 1) << j;
      }
      const std::size_t row = 2 * b + i % 2, column = 8 * c + 2 * d + i / 2;
      codes[(row * static_cast<std::size_t>(vectors) + column) * stages + stage] =
          code_of(static_cast<std::uint32_t>(word >> (8 * i) & 0xff), signs);
    }
  }
}

}  // namespace vqgen

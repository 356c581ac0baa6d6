#include "quantizer/import/iq_blocks.h"

#include <bit>

#include "quantizer/import/grids.h"
#include "quantizer/import/little_endian.h"

namespace vqgen {
namespace {

// Seven signs, and an eighth that makes the number of minuses even.
std::uint8_t even_signs(unsigned seven) {
  return static_cast<std::uint8_t>(seven | static_cast<unsigned>(std::popcount(seven) & 1) << 7);
}

// Two numbers of four bits in each byte, the low one first.
unsigned nibble(const std::byte* at, int index) {
  return byte_at(at, index / 2) >> (index % 2 * 4) & 15;
}

template <class Value>
std::uint16_t as_index(Value value) {
  return static_cast<std::uint16_t>(value);
}

// scale, 8 x {4 indices of 8 bits, 4 x 7 signs, s of 4 bits}
void split_iq2_xxs(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (std::size_t g = 0; g < 8; ++g) {
    const std::byte* const of_group = block + 2 + 8 * g;
    const std::uint32_t rest = u32_at(of_group + 4);
    for (std::size_t k = 0; k < 4; ++k) {
      into.index[4 * g + k] = as_index(byte_at(of_group, static_cast<int>(k)));
      into.signs[4 * g + k] = even_signs(rest >> (7 * k) & 127);
    }
    into.sub_scales[g] = static_cast<std::uint8_t>(rest >> 28);
  }
}

// scale, 32 x {index of 9 bits, 7 signs}, 16 x s of 4 bits
void split_iq2_xs(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (std::size_t j = 0; j < 32; ++j) {
    const unsigned code = u16_at(block + 2 + 2 * j);
    into.index[j] = as_index(code & 511);
    into.signs[j] = even_signs(code >> 9);
  }
  for (std::size_t g = 0; g < 16; ++g) {
    into.sub_scales[g] = static_cast<std::uint8_t>(nibble(block + 66, static_cast<int>(g)));
  }
}

// scale, 32 low bytes of indices, 32 x 8 signs, 32 x 2 high bits, 16 x s of 4 bits
void split_iq2_s(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (int j = 0; j < 32; ++j) {
    const unsigned high = byte_at(block + 66, j / 4) >> (j % 4 * 2) & 3;
    const auto at = static_cast<std::size_t>(j);
    into.index[at] = as_index(byte_at(block + 2, j) | high << 8);
    into.signs[at] = static_cast<std::uint8_t>(byte_at(block + 34, j));
  }
  for (std::size_t g = 0; g < 16; ++g) {
    into.sub_scales[g] = static_cast<std::uint8_t>(nibble(block + 74, static_cast<int>(g)));
  }
}

// scale, 64 indices of 8 bits, 8 x {4 x 7 signs, s of 4 bits}
void split_iq3_xxs(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (std::size_t j = 0; j < 64; ++j) into.index[j] = as_index(byte_at(block + 2 + j));
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t rest = u32_at(block + 66 + 4 * g);
    for (std::size_t k = 0; k < 4; ++k) {
      into.signs[4 * g + k] = even_signs(rest >> (7 * k) & 127);
    }
    into.sub_scales[g] = static_cast<std::uint8_t>(rest >> 28);
  }
}

// scale, 64 low bytes of indices, 64 high bits, 32 x 8 signs, 8 x s of 4 bits
void split_iq3_s(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (int j = 0; j < 64; ++j) {
    const unsigned high = byte_at(block + 66, j / 8) >> (j % 8) & 1;
    into.index[static_cast<std::size_t>(j)] = as_index(byte_at(block + 2, j) | high << 8);
  }
  for (std::size_t j = 0; j < 32; ++j) {
    into.signs[j] = static_cast<std::uint8_t>(byte_at(block + 74 + j));
  }
  for (std::size_t g = 0; g < 8; ++g) {
    into.sub_scales[g] = static_cast<std::uint8_t>(nibble(block + 106, static_cast<int>(g)));
  }
}

// scale, 32 low bytes of indices, 8 x {4 x 3 high bits, s of 3 bits, offset}
void split_iq1_s(const std::byte* block, IqBlock& into) {
  into.scale = f16_at(block);
  for (std::size_t g = 0; g < 8; ++g) {
    const unsigned rest = u16_at(block + 34 + 2 * g);
    for (std::size_t k = 0; k < 4; ++k) {
      into.index[4 * g + k] = as_index(byte_at(block + 2 + 4 * g + k) | (rest >> (3 * k) & 7) << 8);
      into.below[4 * g + k] = (rest & 0x8000) != 0;
    }
    into.sub_scales[g] = static_cast<std::uint8_t>(rest >> 12 & 7);
  }
}

// 32 low bytes of indices, 32 x {3 high bits, offset}, 4 x {4 x s of 3 bits, a quarter of scale}
void split_iq1_m(const std::byte* block, IqBlock& into) {
  unsigned scale = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const unsigned rest = u16_at(block + 48 + 2 * i);
    scale |= rest >> 12 << (4 * i);
    for (std::size_t k = 0; k < 4; ++k) {
      into.sub_scales[4 * i + k] = static_cast<std::uint8_t>(rest >> (3 * k) & 7);
    }
  }
  into.scale = f16_to_float(static_cast<std::uint16_t>(scale));
  for (std::size_t j = 0; j < 32; ++j) {
    const unsigned rest = nibble(block + 32, static_cast<int>(j));
    into.index[j] = as_index(byte_at(block + j) | (rest & 7) << 8);
    into.below[j] = (rest & 8) != 0;
  }
}

template <std::size_t kSize, bool kOffset>
void join_as(const IqFormat& format, const IqBlock& block, float* weights) {
  const std::int8_t* const grid = format.grid().data();
  for (std::size_t eight = 0; eight < kIqBlock / 8; ++eight) {
    const unsigned s = block.sub_scales[8 * eight / static_cast<std::size_t>(format.group)];
    const float scale = block.scale * static_cast<float>(2 * s + 1) * format.unit;
    std::array<float, 8> entries;
    for (std::size_t i = 0; i < 8; ++i) {
      entries[i] = grid[block.index[(8 * eight + i) / kSize] * kSize + i % kSize];
    }
    if constexpr (kOffset) {
      const float offset = block.below[eight] ? -0.125f : 0.125f;
      for (std::size_t i = 0; i < 8; ++i) weights[8 * eight + i] = scale * (entries[i] + offset);
    } else {
      for (std::size_t i = 0; i < 8; ++i) {
        const std::uint32_t sign = static_cast<std::uint32_t>(block.signs[eight] >> i & 1) << 31;
        weights[8 * eight + i] =
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale * entries[i]) ^ sign);
      }
    }
  }
}

}  // namespace

const IqFormat kIq1S{iq1_grid, 8, 32, 1, true, split_iq1_s};
const IqFormat kIq1M{iq1_grid, 8, 16, 1, true, split_iq1_m};
const IqFormat kIq2Xxs{iq2_xxs_grid, 8, 32, 0.125f, false, split_iq2_xxs};
const IqFormat kIq2Xs{iq2_xs_grid, 8, 16, 0.125f, false, split_iq2_xs};
const IqFormat kIq2S{iq2_s_grid, 8, 16, 0.125f, false, split_iq2_s};
const IqFormat kIq3Xxs{iq3_xxs_grid, 4, 32, 0.25f, false, split_iq3_xxs};
const IqFormat kIq3S{iq3_s_grid, 4, 32, 1, false, split_iq3_s};

void join(const IqFormat& format, const IqBlock& block, float* weights) {
  if (format.vector_size == 4) {
    join_as<4, false>(format, block, weights);
  } else if (format.offset) {
    join_as<8, true>(format, block, weights);
  } else {
    join_as<8, false>(format, block, weights);
  }
}

}  // namespace vqgen

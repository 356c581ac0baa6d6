// Blocks of GGUF's i-quants with codebooks, taken apart into what a vector quantizer stores: an
// index and signs per vector, and a small scale per group beside the block's.
//
//   weight = scale * (2 s + 1) * unit * (+-entry + offset)
//
// where s is the group's, and the offset, of IQ1 alone, is 1/8 or -1/8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vqgen {

inline constexpr int kIqBlock = 256;  // weights

struct IqBlock {
  float scale = 0;
  std::array<std::uint16_t, kIqBlock / 4> index;       // of each vector
  std::array<std::uint8_t, kIqBlock / 8> signs;        // of 8 weights: bit i is set: i is negative
  std::array<std::uint8_t, kIqBlock / 16> sub_scales;  // s of each group
  std::array<bool, kIqBlock / 8> below;                // of 8 weights: the offset is -1/8
};

struct IqFormat {
  const std::vector<std::int8_t>& (*grid)();
  int vector_size;  // weights of an entry
  int group;        // weights that share s
  float unit;
  bool offset;  // IQ1
  // Reads one block; sets what the format has, and leaves the rest.
  void (*split)(const std::byte* block, IqBlock& into);
};

extern const IqFormat kIq1S, kIq1M, kIq2Xxs, kIq2Xs, kIq2S, kIq3Xxs, kIq3S;

// The block's 256 weights.
void join(const IqFormat& format, const IqBlock& block, float* weights);

}  // namespace vqgen

// Codes of QuIP#'s E8P12 as vqgen has them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

inline constexpr std::int64_t kQuipTileRows = 16,
                              kQuipTileColumns = 64;  // whose words are together

// The package's table [256][8]: the 227 vectors of squared norm up to 10 in lexicographic order,
// and 29 of five 3/2 and three 1/2.
std::vector<float> quip_table();

// The codes of one of several stages of 16 rows, [16][vectors][stages], from the stage's words
// [vectors / 8][8][4]: word (c, b, d) has rows 2 b and 2 b + 1, and of each the vectors 8 c + 2 d
// and the next.
void quip_tile(std::span<const std::uint64_t> words, std::int64_t vectors, std::size_t stages,
               std::size_t stage, std::span<std::uint16_t> codes);

}  // namespace vqgen

// How words get by shuffles from the lanes that look them up to those that multiply them (VQ-LLM,
// section VI-B), in one step of an mma GEMM: 32 columns of 2 `rows` outputs, `rows` words per lane.
// `rows` is fragment_rows, 4 or 8. Lane 4 g + c has words of output g and, with 8 rows, g + 8.
//
// A shuffle is one instruction: every lane sends one word of its choice to lane ^ mask and receives
// one. An exchange has as many as the words that a lane does not look up itself.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "heuristics/check.h"

namespace vqgen::fusion {

inline constexpr int kLanes = 32;
inline constexpr int kColumns = 32;
template <class T>
using ByLane = std::array<T, std::size_t{kLanes}>;

// Columns `column` and column + 1 of an output, in one register.
struct Word {
  int output = 0;
  int column = 0;
  bool operator==(const Word&) const = default;
};

// The word in register `number` of `lane` after lookups of entries of `vector_size` (2, 4 or 8), as
// in FragmentCodes. A lane looks up its own octet c of 8 columns; with fusion registers the n =
// vector_size / 2 lanes that need words of the same entry look up different octets.
Word looked_up(LinearFusion fusion, int vector_size, int lane, int number);

// The data column at `column` of the operand. Fusion permute uses an order in which each lane
// multiplies what it looked up, and x must follow it; with 8 rows the kernel takes an octet's words
// in turn, which is equivalent. Other fusions keep the order.
int ordered(LinearFusion fusion, int column);

// The word that a lane needs for operand A of mma.m16n8k16, columns ordered. With 8 rows a step is
// two MMAs of 16 outputs; with 4 it is one, whose rows g and g + 8 are columns 0..15 and 16..31.
Word multiplied(LinearFusion fusion, int rows, int lane, int number);

struct Shuffle {
  int mask = 0;      // 1..31
  ByLane<int> sent;  // register
  ByLane<int> into;  // register that is brought
};

struct Exchange {
  LinearFusion fusion = LinearFusion::permute;
  int vector_size = 0;
  int rows = 0;
  std::vector<Shuffle> shuffles;  // by mask; with fusion shared those that it saves
  // [register]: source s is the lane's own register s, or what shuffle number s - rows brought it.
  std::vector<ByLane<int>> results;
};

Exchange exchange_of(LinearFusion fusion, int vector_size, int rows);

// Draws the exchange: which lane looks up what, sends which register to whom, and multiplies what,
// with the column order if it differs. It shows the first four lanes by mini-warps, lanes that
// trade with each other, and the shuffles if registers are fused
// (docs/internals/dataflows/gemm-mma.md).
std::vector<std::string> draw(const Exchange& exchange);

}  // namespace vqgen::fusion

// How words get from the lanes that look them up to those that multiply them, without shared memory
// (VQ-LLM, section VI-B), in one step of dataflow fragments: 32 columns of 2 `rows` outputs, which
// a warp holds as `rows` words a lane. `rows` is fragment_rows, 4 or 8. Lane 4 g + c has words of
// outputs g and, with 8 rows, g + 8.
//
// A shuffle is one instruction: every lane sends one word of its choice to lane ^ mask, and so is
// brought one. An exchange has as many as the words that a lane does not look up itself.
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

// What register `number` of `lane` holds after the lookup of entries of `vector_size` (2, 4 or 8),
// as FragmentCodes has it. Of the octets of 8 columns a lane looks up its own, c; with fusion
// registers the n = vector_size / 2 lanes that want words of an entry each look up other octets.
Word looked_up(LinearFusion fusion, int vector_size, int lane, int number);

// The column of the data that stands at `column` of the operand. Fusion permute: an order in which
// each lane multiplies what it looked up, and which x must follow; with 8 rows the kernel takes the
// words of an octet in turn, which is another such order. Other fusions keep the order.
int ordered(LinearFusion fusion, int column);

// What it must hold as the operand A of mma.m16n8k16, its columns ordered. With 8 rows a step is
// two products of 16 outputs, with 4 one, whose rows g and g + 8 are columns 0..15 and 16..31.
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
  std::vector<Shuffle> shuffles;  // by mask; with fusion shared those that are spared
  // [register]: source s is the lane's own register s, or what shuffle number s - rows brought it.
  std::vector<ByLane<int>> results;
};

Exchange exchange_of(LinearFusion fusion, int vector_size, int rows);

// The exchange for people: who dequantizes what, who sends which register to whom, who consumes
// what. The figures, the order of the columns where it is not theirs, and the first four lanes, by
// mini-warps, which are lanes that trade with each other; the shuffles where registers are fused.
// docs/internals/dataflows/gemm-mma.md shows how to read it.
std::vector<std::string> draw(const Exchange& exchange);

}  // namespace vqgen::fusion

namespace vqgen {

// The paper's choice (VI-B2): registers where the operand of one product takes fewer than
// `threshold` shuffles, else shared memory.
LinearFusion fusion_by_shuffles(int vector_size, int threshold = 5);

// The plan with the paper's choice, if it is one of fragments: where check() refuses that, with
// shared memory; else as it is. Boundaries do not matter.
Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen

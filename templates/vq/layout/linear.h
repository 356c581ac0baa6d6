// Compile-time facts of one gemv or gemm kernel, y = x W^T, and how its block carves shared memory.
// A block serves some output features and walks its share of the input features, a chunk of columns
// staged at a time.
//
// A warp serves outputs_per_warp outputs and rows_per_block rows; in dataflow fragments
// warps_along_columns warps share the columns of the same outputs. Grid: (blocks of outputs, blocks
// of rows, splits).
#pragma once

#include <vq/layout/core_matrices.h>
#include <vq/layout/format.h>
#include <vq/layout/splits.h>

namespace vq {

enum class LinearDataflow : int {
  kLanes = 0,
  kFragments = 1,
  kTables = 2,
  kWarpgroups = 3,
  kSlices = 4
};

// Fragments: how entries come to stand as the tensor core has its operands (VQ-LLM, section VI-B).
// kPermute: as they are, x being laid out to match. The others leave x in the order of its columns:
// kRegisters exchanges words between lanes, kShared sends them through shared memory.
enum class LinearFusion : int { kPermute = 0, kRegisters = 1, kShared = 2 };

struct LinearConfig {
  Element element;
  LinearDataflow dataflow;
  int rows;
  i64 out_features;
  i64 in_features;
  int threads;
  int outputs_per_warp;
  int chunk_columns;
  int splits;
  Combine combine;
  int warps_along_columns;
  int rows_per_block;
  int fragment_rows;  // fragments: rows of x that one product serves, 4 (halves) or 8 (pairs);
                      // warpgroups: 8, for outputs go to lanes as with pairs
  LinearFusion fusion;
  int code_words;
  int idle_warps;   // warpgroups: warps of a block's last group that have no outputs
  int steps_ahead;  // warpgroups: 1 where a step is looked up before the last is multiplied
  bool output_scales;
  i64 unit_rows;         // output features that one codebook unit serves
  i64 unit_columns;      // input features that one codebook unit serves
  FormatConfig weights;  // unit_elements is not used: unit_columns says it
};

// A block of the kernel that sums up splits.
inline constexpr int kCombineThreads = 256;

VQ_HD constexpr int block_rows(const LinearConfig& c) {
  return c.rows < c.rows_per_block ? c.rows : c.rows_per_block;
}
VQ_HD constexpr int outputs_per_block(const LinearConfig& c) {
  return (c.threads / 32 - c.idle_warps) / c.warps_along_columns * c.outputs_per_warp;
}
// Counters of a call whose last blocks merge: results that blocks share.
VQ_HD constexpr i64 counters(const LinearConfig& c) {
  return ceil_div(c.out_features, i64{outputs_per_block(c)}) * ceil_div(c.rows, c.rows_per_block);
}
VQ_HD constexpr i64 units_per_row(const LinearConfig& c) {
  return ceil_div(c.in_features, c.unit_columns);
}
// A chunk lies within one unit or holds whole units.
VQ_HD constexpr bool chunk_in_one_unit(const LinearConfig& c) {
  return c.unit_columns >= c.in_features || c.unit_columns % c.chunk_columns == 0;
}
// Units that one chunk of columns touches.
VQ_HD constexpr int units_per_chunk(const LinearConfig& c) {
  return chunk_in_one_unit(c) ? 1
                              : static_cast<int>(ceil_div(i64{c.chunk_columns}, c.unit_columns));
}
VQ_HD constexpr i64 chunks(const LinearConfig& c) {
  return ceil_div(c.in_features, i64{c.chunk_columns});
}

// Tables: a chunk is some sub-vectors a lane, which follow each other, and a split is one chunk.
VQ_HD constexpr int lane_sub_vectors(const LinearConfig& c) {
  return c.chunk_columns / (32 * c.weights.vector_size);
}
// Outputs whose codes a warp has in flight, and whose sums it reduces at once.
VQ_HD constexpr int table_group(const LinearConfig& c) {
  constexpr int kMost = 16;
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kMost ? power : kMost;
}
// A table holds the inner products of one row of x, one of the lanes' sub-vectors and one stage:
// a row of 128 bytes an entry, a lane a bank. Where codes are bytes, two tables take turns row by
// row, so that a code is a byte of an address (codebook/shared.cuh).
VQ_HD constexpr int row_tables(const LinearConfig& c) {
  return lane_sub_vectors(c) * c.weights.residuals;
}
VQ_HD constexpr int table_rows_at_once(const LinearConfig& c) {
  return c.weights.index_bits == 8 && row_tables(c) % 2 == 0 ? 2 : 1;
}

// Slices: a block holds slice_elements of each entry of one stage, and has one chunk of the
// columns:
//
//   split = (chunk * residuals + stage) * (vector_size / slice_elements) + slice
//
// In a step lane l reads code_words words of an output's codes, which are slice_run sub-vectors; x
// of a lane's sub-vectors of a step goes by accesses of up to 16 bytes, lanes side by side.
VQ_HD constexpr int entry_slices(const LinearConfig& c) {
  return static_cast<int>(c.splits / (chunks(c) * c.weights.residuals));
}
VQ_HD constexpr int slice_elements(const LinearConfig& c) {
  return c.weights.vector_size / entry_slices(c);
}
VQ_HD constexpr int slice_bytes(const LinearConfig& c) {
  return held_bytes(c.weights) / entry_slices(c);
}
VQ_HD constexpr int slice_run(const LinearConfig& c) {
  return 32 * c.code_words / (c.weights.residuals * c.weights.index_bits);
}
VQ_HD constexpr int slice_step_columns(const LinearConfig& c) {
  return 32 * slice_run(c) * c.weights.vector_size;
}
VQ_HD constexpr int slice_steps(const LinearConfig& c) {
  return c.chunk_columns / slice_step_columns(c);
}
// The largest integer that x becomes for int8 entries.
inline constexpr int kSlicePeak = 32767;
// The largest magnitude that a lane's sum of products of integers can have.
VQ_HD constexpr i64 slice_sum(const LinearConfig& c) {
  constexpr int kEntryPeak = 127;
  return i64{kSlicePeak} * kEntryPeak * slice_elements(c) * slice_steps(c) * slice_run(c);
}
// Words of x that a slice is multiplied with: fp32, or two integers of 16 bits.
VQ_HD constexpr int slice_x_words(const LinearConfig& c) {
  return c.weights.int8_entries ? slice_elements(c) / 2 : slice_elements(c);
}
// Outputs that a warp serves at once: kSliceGroup where its outputs allow it.
inline constexpr int kSliceGroup = 4;
VQ_HD constexpr int slice_group(const LinearConfig& c) {
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kSliceGroup ? power : kSliceGroup;
}

// Fragments. The four lanes that hold one output's operand each take a run of consecutive columns,
// the shortest whose codes fill whole loads of code_words words:
//
//   columns of a chunk   | lane 0's run | lane 1's | lane 2's | lane 3's | lane 0's ...
//
// An octet is 8 columns. In a step the four lanes multiply 4 octets, the next of each lane's run. A
// product serves 8 outputs and 4 rows of x or 16 and 8.
//
// With kRegisters lanes look up other entries, so that few words have to move: v / 2 streams of
// codes serve the four lanes, lane c reads stream c % (v / 2) and its entry number c / (v / 2) of
// each octet, and a step takes the next 8 / v octets of each stream.
VQ_HD constexpr int fragment_outputs(const LinearConfig& c) { return 2 * c.fragment_rows; }
VQ_HD constexpr int octet_codes(const FormatConfig& f) { return 8 / f.vector_size * f.residuals; }
VQ_HD constexpr int code_streams(const LinearConfig& c) {
  return c.fusion == LinearFusion::kRegisters ? c.weights.vector_size / 2 : 4;
}
// Where each stage has a factor, its products have sums of their own that the factor scales at
// last, if one unit serves the whole matrix and there are registers for them; else the stages are
// scaled, added up and rounded to 16 bits before each product.
VQ_HD constexpr bool scaled_sums(const LinearConfig& c) {
  constexpr int kMostSums = 16;  // of 4 registers
  const int tiles = c.outputs_per_warp / fragment_outputs(c) * (c.rows_per_block / c.fragment_rows);
  return c.weights.stage_scales && c.unit_rows >= c.out_features && units_per_row(c) == 1 &&
         c.weights.residuals * tiles <= kMostSums;
}
VQ_HD constexpr int greatest_common_divisor(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
// Octets of one stream's run: a power of two, and whole steps of them.
VQ_HD constexpr int run_octets(const LinearConfig& c) {
  const int bits = octet_codes(c.weights) * c.weights.index_bits;
  const int filled = 32 * c.code_words / greatest_common_divisor(bits, 32 * c.code_words);
  const int of_step = 4 / code_streams(c);
  return filled < of_step ? of_step : filled;
}
VQ_HD constexpr int run_words(const LinearConfig& c) {
  return run_octets(c) * octet_codes(c.weights) * c.weights.index_bits / 32;
}
VQ_HD constexpr int run_columns(const LinearConfig& c) {
  return code_streams(c) * 8 * run_octets(c);
}
VQ_HD constexpr int run_steps(const LinearConfig& c) { return run_columns(c) / 32; }
// The first column, from the run's, of octet 0 .. 3 of a step; `octets` are those of a stream's
// run.
VQ_HD constexpr int octet_column(int streams, int octets, int step, int octet) {
  return (octet % streams * octets + step * (4 / streams) + octet / streams) * 8;
}

// Threads fetch x several steps at a time, which follow each other in a row, and store them to
// steps of shared memory that stand so many bytes further apart than they are long: no two of the
// 128 bytes that are stored at once meet in a bank.
VQ_HD constexpr int steps_together(const LinearConfig& c) {
  return run_steps(c) < 8 ? run_steps(c) : 8;
}
VQ_HD constexpr int step_gap_bytes(const LinearConfig& c) {
  return steps_together(c) > 1 ? 128 / steps_together(c) : 0;
}

// With fusions other than kPermute, x and the entries of kShared stand in tiles of rows of the 4
// octets of a step. Where octet `octet` of a row stands in its tile, in octets of 16 bytes: neither
// 2 rows that are stored at once nor the 8 octets that ldmatrix reads at once meet in a bank.
VQ_HD constexpr int tile_place(int row, int octet) { return row * 4 + (octet ^ row / 2 % 4); }

// Warpgroups. Outputs, codes and steps are those of fragments with pairs; a warp group of four
// warps multiplies 64 outputs by all rows of the block. The x of a chunk stands as core matrices
// (core_matrices.h), an octet of a step after the other, so that a product's two octets and all
// rows are one piece:
//
//   a step   product 0: k 0..7 | k 8..15 | product 1: k 0..7 | k 8..15     all rows, 16 bytes each
//
// A dot product does not care in which order its columns come: in k octet p word c is columns 2p
// and 2p + 1 of the octet of lane c, so that what lane c looks up is its operand as it comes.
inline constexpr int kGroupWarps = 4;
inline constexpr int kStepOctets = 4;
// A chunk is stored while the last products of the one before are still reading theirs, and other
// warps are behind by a barrier.
inline constexpr int kChunkBuffers = 3;

VQ_HD constexpr int k_octet_bytes(const LinearConfig& c) {
  return c.rows_per_block * kCoreRowBytes;
}
VQ_HD constexpr int product_bytes(const LinearConfig& c) { return 2 * k_octet_bytes(c); }
// From a step to the next: 16 bytes more than it has, so that threads which store the same row of
// steps that follow each other meet in no bank.
VQ_HD constexpr int step_bytes(const LinearConfig& c) {
  return 2 * product_bytes(c) + kCoreRowBytes;
}
VQ_HD constexpr int chunk_steps(const LinearConfig& c) { return c.chunk_columns / 32; }
VQ_HD constexpr int chunk_bytes(const LinearConfig& c) { return chunk_steps(c) * step_bytes(c); }
// The core matrices of a chunk whose first stands at `address`.
VQ_HD constexpr u64 x_descriptor(const LinearConfig& c, u32 address) {
  return core_descriptor(address, k_octet_bytes(c), kCoreBytes);
}
// Rows of a step that one thread fetches, 4 octets each, while the last chunk is multiplied.
VQ_HD constexpr int fetched_steps(const LinearConfig& c) {
  return ceil_div(c.rows_per_block * chunk_steps(c), c.threads);
}
// What a sub-vector is looked up as: an entry a stage or, with scales, their sum.
VQ_HD constexpr int looked_up_stages(const FormatConfig& f) {
  return f.stage_scales ? 1 : f.residuals;
}
// 32-bit registers of a thread: sums, the x of the next chunk, the codes of this run and the next,
// operands of two steps, what is looked up ahead; and addresses and what is being looked up.
VQ_HD constexpr int warpgroup_registers(const LinearConfig& c) {
  constexpr int kBeside = 32;
  const int tiles = c.outputs_per_warp / fragment_outputs(c);
  return tiles * c.rows_per_block / 2 + 16 * fetched_steps(c) + tiles * 2 * (2 * run_words(c) + 8) +
         c.steps_ahead * tiles * 8 * looked_up_stages(c.weights) + kBeside;
}

// Byte offsets into the block's shared memory.
struct LinearShared {
  CodebookShared codebook;
  // lanes: [block_rows][chunk_columns] fp32. tables, with n = table_rows_at_once:
  // [block_rows][row_tables / n][entry][n][lane] fp32.
  // fragments: [run][step][row tile][fragment_rows x 32] u16, steps step_gap_bytes apart
  // (ops/fragment_x.cuh); after the columns, the sums that warps hand over.
  // warpgroups: [kChunkBuffers][chunk_steps][kStepOctets][rows_per_block][8] u16, steps step_bytes
  // apart.
  // slices: [block_rows][step][access][lane][word], of slice_run * slice_x_words words a lane.
  i64 x;
  // slices: [entry] slices; and of int8 entries [block_rows][warp] u32, largest magnitudes.
  i64 slices;
  i64 peaks;
  // fragments with kShared: [warp][kExchangeTiles][kExchangeOctets][8] u16.
  i64 exchange;
  i64 total;
};

// Fragments with kShared: a warp's tiles, and a tile: 8 outputs by the 4 octets of a step.
inline constexpr int kExchangeTiles = 2;
inline constexpr int kExchangeOctets = 32;

// Fragments: floats that the warps of a block hand to each other when the columns are done.
VQ_HD constexpr i64 handed_floats(const LinearConfig& c) {
  if (c.warps_along_columns == 1) return 0;
  const int lane_sums = c.fragment_rows == 4 ? 1 : 4;
  return i64{c.threads} / 2 * (c.outputs_per_warp / fragment_outputs(c)) *
         (c.rows_per_block / c.fragment_rows) * lane_sums;
}

VQ_HD constexpr LinearShared shared_layout(const LinearConfig& c) {
  LinearShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  if (c.dataflow == LinearDataflow::kLanes) {
    at.x = carve(i64{block_rows(c)} * c.chunk_columns * 4);
  } else if (c.dataflow == LinearDataflow::kTables) {
    at.x = carve(i64{block_rows(c)} * row_tables(c) * entries(c.weights) * 32 * 4);
  } else if (c.dataflow == LinearDataflow::kSlices) {
    at.x = carve(i64{block_rows(c)} * slice_steps(c) * 32 * slice_run(c) * slice_x_words(c) * 4);
    at.slices = carve(i64{entries(c.weights)} * slice_bytes(c));
    at.peaks = carve(c.weights.int8_entries ? i64{block_rows(c)} * (c.threads / 32) * 4 : i64{0});
  } else if (c.dataflow == LinearDataflow::kWarpgroups) {
    at.x = carve(i64{kChunkBuffers} * chunk_bytes(c));
  } else {
    const i64 staged =
        i64{c.rows_per_block} * c.chunk_columns * 2 + i64{c.chunk_columns} / 32 * step_gap_bytes(c);
    const i64 handed = handed_floats(c) * 4;
    at.x = carve(staged > handed ? staged : handed);
    if (c.fusion == LinearFusion::kShared) {
      at.exchange = carve(i64{c.threads} / 32 * kExchangeTiles * kExchangeOctets * 16);
    }
  }
  at.total = carve.next;
  return at;
}

}  // namespace vq

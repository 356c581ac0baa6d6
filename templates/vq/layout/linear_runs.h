// How tensor-core GEMMs (mma, wgmma, wgmma_large_m) read codes in runs and x in octets.
#pragma once

#include <vq/layout/linear.h>

namespace vq {

// How entries reach the MMA operands from the lanes that look them up (VQ-LLM, section VI-B).
// permute: they do not move, x is laid out to match. The others keep x in column order: registers
// exchanges words by shuffles, shared through shared memory.
enum class LinearFusion : int { permute, registers, shared };
template <>
struct EnumNames<LinearFusion> {
  static constexpr const char* kType = "vq::LinearFusion";
  static constexpr const char* kNames[] = {"permute", "registers", "shared"};
};

// The four lanes that hold one output's operand each take a run of consecutive columns, the
// shortest whose codes fill whole loads of code_words words:
//
//   columns of a chunk   | lane 0's run | lane 1's | lane 2's | lane 3's | lane 0's ...
//
// An octet is 8 columns. In a step the four lanes multiply 4 octets, the next of each lane's run.
// An MMA serves 8 outputs and 4 rows of x, or 16 and 8.
//
// With fusion registers v / 2 streams of codes serve the four lanes, so that few words move: lane c
// reads stream c % (v / 2) and entry c / (v / 2) of each octet, and a step takes the next 8 / v
// octets of each stream.
template <class Plan>
VQ_HD constexpr int fragment_outputs(const LinearConfig<Plan>& c) {
  return 2 * c.fragment_rows;
}
VQ_HD constexpr int octet_codes(const FormatConfig& f) {
  return 8 / f.vector_size * f.num_codebooks;
}
template <class Plan>
VQ_HD constexpr int code_streams(const LinearConfig<Plan>& c) {
  return c.fusion == LinearFusion::registers ? c.weights.vector_size / 2 : 4;
}
// True if one unit serves the whole matrix.
template <class Plan>
VQ_HD constexpr bool in_one_unit(const LinearConfig<Plan>& c) {
  return c.unit_rows >= c.out_features && units_per_row(c) == 1;
}
// True if each stage has a factor and accumulators of its own, scaled once at the end: one unit
// must serve the whole matrix, several stages have no scales of groups and one has no minima, and
// registers must suffice.
// Else stages are scaled, summed and rounded to 16 bits before each MMA.
template <class Plan>
VQ_HD constexpr bool scaled_sums(const LinearConfig<Plan>& c) {
  constexpr int kMostSums = 16;  // of 4 registers each
  const int tiles = c.outputs_per_warp / fragment_outputs(c) * (c.rows_per_block / c.fragment_rows);
  return c.weights.stage_scales && (c.weights.group_inputs == 0 || c.weights.num_codebooks == 1) &&
         !c.weights.group_minima && in_one_unit(c) && c.weights.num_codebooks * tiles <= kMostSums;
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
template <class Plan>
VQ_HD constexpr int run_octets(const LinearConfig<Plan>& c) {
  const int bits = octet_codes(c.weights) * c.weights.index_bits;
  const int filled = 32 * c.code_words / greatest_common_divisor(bits, 32 * c.code_words);
  const int of_step = 4 / code_streams(c);
  return filled < of_step ? of_step : filled;
}
template <class Plan>
VQ_HD constexpr int run_words(const LinearConfig<Plan>& c) {
  return run_octets(c) * octet_codes(c.weights) * c.weights.index_bits / 32;
}
template <class Plan>
VQ_HD constexpr int run_columns(const LinearConfig<Plan>& c) {
  return code_streams(c) * 8 * run_octets(c);
}
template <class Plan>
VQ_HD constexpr int run_steps(const LinearConfig<Plan>& c) {
  return run_columns(c) / 32;
}
// First column, counted from the run's, of octet 0 .. 3 of a step; `octets` is the octets of a
// stream's run.
VQ_HD constexpr int octet_column(int streams, int octets, int step, int octet) {
  return (octet % streams * octets + step * (4 / streams) + octet / streams) * 8;
}

// Consecutive steps of a row that threads fetch at a time. They store them to steps in shared
// memory with a gap, so that the 128 bytes stored at once have no bank conflicts.
template <class Plan>
VQ_HD constexpr int steps_together(const LinearConfig<Plan>& c) {
  return run_steps(c) < 8 ? run_steps(c) : 8;
}
template <class Plan>
VQ_HD constexpr int step_gap_bytes(const LinearConfig<Plan>& c) {
  return steps_together(c) > 1 ? 128 / steps_together(c) : 0;
}

}  // namespace vq

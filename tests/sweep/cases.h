// The cases of the sweep: problems, plans and data over all axes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"
#include "runtime/execute.h"
#include "runtime/verify/hard_input.h"
#include "tests/sweep/pairwise.h"

namespace vqgen::test {

struct SweepCase {
  std::string name;
  Problem problem;
  Plan plan;
  HardInput input;
  bool aligned_results = false;   // out and y begin at multiples of 16
  bool override_dropped = false;  // check() refused the case's own plan fields
  bool dataflow_dropped = false;  // no plan of the case's dataflow passes check()
};

struct SweepCases {
  std::vector<SweepCase> cases;
  std::size_t pairs = 0;
  std::size_t uncovered = 0;
};

// A case of a GEMM with the rules' plan of product_plan()'s dataflow, of the first where that one
// does not fit.
SweepCase product_case(const Linear& op, int dataflow, const GpuSpec& gpu);

// The name of a case, from the values of its axes: "0-3-1".
inline std::string case_name(const std::vector<int>& values) {
  return fmt::format("{}", fmt::join(values, "-"));
}

// Every pair of values of the op's axes; the tables are in the source. Linear is GEMV and GEMM.
SweepCases attention_pairwise(const GpuSpec& gpu, std::uint64_t seed);
SweepCases linear_pairwise(const GpuSpec& gpu, std::uint64_t seed);
SweepCases bytes_pairwise(const GpuSpec& gpu, std::uint64_t seed);  // the int8 GEMM dataflows
SweepCases attention_int8_mma_pairwise(const GpuSpec& gpu,
                                       std::uint64_t seed);           // this dataflow only
SweepCases experts_pairwise(const GpuSpec& gpu, std::uint64_t seed);  // MoE GEMMs
SweepCases epilogue_pairwise(const GpuSpec& gpu, std::uint64_t seed);
SweepCases append_pairwise(std::uint64_t seed);
SweepCases append_gemm_pairwise(std::uint64_t seed);  // this dataflow only
SweepCases dequantize_pairwise(const GpuSpec& gpu, std::uint64_t seed);
SweepCases merge_pairwise(std::uint64_t seed);
SweepCases matrix_pairwise(std::uint64_t seed);
SweepCases weight_rows_pairwise(const GpuSpec& gpu, std::uint64_t seed);
// Caches with scalar codes: attention, kv_append and kv_dequantize in turns.
SweepCases scalar_pairwise(const GpuSpec& gpu, std::uint64_t seed);

// index_bits 2..16 x vector_size 2, 4, 8 x num_codebooks 1..4, and E8P x num_codebooks 1..4, at one
// small size; the element type and the scope alternate.
std::vector<SweepCase> attention_product(const GpuSpec& gpu, std::uint64_t seed);
std::vector<SweepCase> gemv_product(const GpuSpec& gpu, std::uint64_t seed);

// sliced_codebook: the code widths that it takes x vector_size x num_codebooks; all else
// alternates.
std::vector<SweepCase> slices_product(const GpuSpec& gpu, std::uint64_t seed);

// Tokens of a page, for caches of all ops, and orders of the pool (none without pages).
inline constexpr std::array kPageTokens{0, 16, 32, 256};
// Newest tokens that are kept raw, tokens of a flush block, and of a page of raw rows.
struct Window {
  int slots;
  int batch = 1;
  int page = 0;
};
// Sinks have slots, which pages of raw rows do not. Value 0 of the sinks' axis is none.
void exclude_raw_pages(std::set<AxisPair>& impossible, std::span<const Window> windows,
                       int window_axis, int sinks_axis, int sinks_values);
inline constexpr std::array<std::optional<PageOrder>, 5> kPageOrders{
    std::nullopt, PageOrder::hnd, PageOrder::nhd, PageOrder::joint, PageOrder::side_by_side};

// The axis of the size of values; 0 leaves them as keys are.
inline constexpr std::array kValueDims{0, 128, 64, 192};
inline void set_value_dim(auto& shape, int value) {
  const int channels = kValueDims[static_cast<std::size_t>(value)];
  shape.value_head_dim = channels == shape.head_dim ? 0 : channels;
}

// All layouts.
inline constexpr std::array kLayouts{CodeLayout{1, 1}, CodeLayout{4, 1}, CodeLayout{2, 2},
                                     CodeLayout{2, 1}, CodeLayout{1, 4}, CodeLayout{1, 2}};

// Codes of a cache in residual stages, as in VQKV; entries of any width.
inline VqFormat wide(int vector_size, int stages, int bits, Scope scope = Scope::tensor) {
  VqFormat format;
  format.vector_size = vector_size;
  format.num_codebooks = stages;
  format.index_bits = bits;
  format.scope = scope;
  return format;
}

// Gives each part a third of 96 channels, in turns.
inline VqFormat three_parts(VqFormat first, VqFormat second, VqFormat third) {
  std::vector<VqFormat> parts{with_layout(first, {32, 1}), with_layout(second, {32, 1}),
                              with_layout(third, {32, 1})};
  for (int i = 0; i < 96; ++i) parts[static_cast<std::size_t>(i % 3)].channels.push_back(i);
  return in_parts(parts);
}

// Int8 entries with codes of 8 bits, in runs of channels with sub-vectors of one size each.
struct ChannelRun {
  int channels, size;
};
VqFormat in_runs(const std::vector<ChannelRun>& runs, Scope scope, int words_of_run = 1);

// Makes the entries integers if `wanted`.
inline void with_integers(VqFormat& format, bool wanted) {
  if (!wanted) return;
  format.entry_type = EntryType::int8;
  format.stage_scales = true;
}

// The axis of the scope of a matrix's codebooks: tensor, narrow and wide channel groups, small
// tiles, and tiles of `tile_rows` by `tile_columns`. Units of many entries are larger: narrow ones
// would take more memory than a test may use.
inline constexpr int kWeightScopes = 5;
void set_weight_scope(VqFormat& format, int value, int tile_rows, int tile_columns);

// The axis of a cache's basis: none, both centred, keys centred and rotated, both.
inline constexpr int kBases = 4;
template <class Op>
void set_basis(Op& op, int value) {
  op.keys.center = value > 0;
  op.keys.klt = value >= 2;
  op.values.center = value == 1 || value == 3;
  op.values.klt = value == 3;
}
// Keys are not rotated where `transform` is.
inline void exclude_rotations(std::set<AxisPair>& impossible, AxisValue transform, int basis_axis) {
  for (int value = 2; value < kBases; ++value) {
    impossible.emplace(transform, AxisValue{basis_axis, value});
  }
}

// The axis of what a query token sees, and what becomes of its scores. Scores of centered keys are
// not bounded.
inline constexpr int kMasks = 8;
void set_mask(AttentionDecode& op, int value);
// A tree takes no chunks, no window shorter than itself, and no batch-invariant results.
void exclude_trees(std::set<AxisPair>& impossible, AxisValue tree, int mask_axis,
                   int batch_invariant_axis);
// A shared prefix takes besides no window of any kind, no sinks, and no batch-invariant results.
// Sink logits, which it does not take either, are left out of the problem.
struct PrefixAxes {
  int mask, batch_invariant, window, windows, sinks, sink_counts;
};
void exclude_prefixes(std::set<AxisPair>& impossible, AxisValue prefix, const PrefixAxes& axes);

// A format of a KV cache by the values of its axes: bits 0 are codes of the lattice; scope 0 is
// tensor, 1 head, 2 a codebook a sub-vector, as CQ, 3 a codebook half a head, which is taken for 2
// where a codebook has more than `most_entries`.
VqFormat cache_format(int bits, int vector, int num_codebooks, int scope, int head_dim,
                      int most_entries = 32);

// The axes of an operand's format, and the value of `bits` that is the lattice. The vector's values
// are 2, 4 and 8; the scales' value 2 means integer entries.
struct FormatAxes {
  int bits, lattice, vector, scales;
};
// Impossible pairs: a lattice has vectors of 8 and its own entries; integers need 4 or 8.
void exclude_formats(std::set<AxisPair>& impossible, const FormatAxes& axes);

// The axes of kLayouts, and those of kPageTokens and kPageOrders.
struct PageAxes {
  int key_layout, value_layout, tokens, order;
};
// Excludes orders without pages, and groups of rows side by side.
void exclude_orders(std::set<AxisPair>& impossible, const PageAxes& axes);
// Excludes only orders without pages.
void exclude_orders(std::set<AxisPair>& impossible, int tokens_axis, int order_axis);

// Cases for all pairs of values of axes with `sizes`; make(values, seed) makes one, which is
// redrawn if check() refuses it.
template <class Make>
SweepCases cases_of_pairs(const std::vector<int>& sizes, const std::set<AxisPair>& impossible,
                          std::uint64_t seed, const Make& make) {
  const Pairwise pairwise(sizes, impossible, seed, [&](const auto& values, std::size_t number) {
    const SweepCase made = make(values, seed + number);
    return !made.override_dropped && !made.dataflow_dropped;
  });
  SweepCases result{{}, pairwise.pairs(), pairwise.uncovered()};
  for (const auto& values : pairwise.cases()) {
    result.cases.push_back(make(values, seed + result.cases.size()));
  }
  return result;
}

// True if the last block merges the plan's splits.
inline bool merges_by_last_block(const Plan& plan) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.combine; }) return each.combine == Combine::last_block;
        return false;
      },
      plan);
}

// Forces boundaries: 0 leaves the default; then none near; 1 and 8 in registers above shared; half
// shared; half replicated, the rest shared; all levels at once; all replicated.
inline constexpr int kPlacements = 8;
void fix_placement(Placement& placement, const VqFormat& format, int variant);

}  // namespace vqgen::test

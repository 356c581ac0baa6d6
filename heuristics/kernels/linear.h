// The common part of the dataflows of gemv and gemm.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/ceil_div.h"
#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/linear_instructions.h"
#include "heuristics/kernels/slice.h"

namespace vqgen {

// Rows of x that blocks are made for. Experts seldom have as many rows as they may: twice their
// even share of the call's.
inline int planned_rows(const Linear& op) {
  const LinearShape& shape = op.shape;
  if (!shape.grouped()) return shape.rows;
  const std::int64_t share = ceil_div(shape.call_rows(), shape.most_touched());
  return static_cast<int>(std::min<std::int64_t>(shape.rows, 2 * share));
}

// Blocks along the rows, of all experts: as if all that can have rows had them.
template <class P>
std::int64_t blocks_of_rows(const Linear& op, const P& plan) {
  const auto config = configured(plan, op);
  return vq::row_blocks(config) * vq::row_slots(config);
}

// Blocks of one split.
template <class P>
std::int64_t blocks_of_split(const Linear& op, const P& plan) {
  return ceil_div(op.shape.out_features, vq::outputs_per_block(configured(plan, op))) *
         blocks_of_rows(op, plan);
}

// Rows of x for which blocks of 4 or 8 are tried.
inline std::vector<int> few_rows(const Linear& op) {
  return planned_rows(op) > 4 ? std::vector{4, 8} : std::vector{4};
}

// Halves outputs per warp, then threads, until a block's outputs divide the rows of a tile.
template <class P>
void fit_tile_rows(const Linear& op, P& plan) {
  if (op.weights.scope != Scope::tile) return;
  const auto divides = [&] {
    return op.weights.tile_rows % (plan.threads / 32 * plan.outputs_per_warp) == 0;
  };
  while (plan.outputs_per_warp > 1 && !divides()) plan.outputs_per_warp /= 2;
  while (plan.threads > 32 && !divides()) plan.threads /= 2;
}

// Rows per block so that no codes are read twice: the least power of two from 8 up to `most`.
inline int rows_of_block(int rows, int most) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::clamp(rows, 8, most))));
}

// About `wanted` splits, each of at least one chunk and all as long.
template <class P>
int splits_in_chunks(const P& plan, const Linear& op, std::int64_t wanted) {
  return static_cast<int>(even_splits(ceil_div(op.shape.in_features, plan.chunk_columns),
                                      std::max<std::int64_t>(1, wanted)));
}

// The plan with its splits as a cluster, if they may be one and all clusters run at once with an SM
// per block.
template <class P>
P clustered(const P& plan, const Linear& op, const GpuSpec& gpu) {
  P as_cluster = plan;
  as_cluster.combine = Combine::cluster;
  if (!check(as_cluster, op, gpu).ok) return plan;
  return call_shape(as_cluster, op).blocks() <= cluster_sms(gpu, plan.splits) ? as_cluster : plan;
}

// Tries whole codebooks in shared memory, then in global memory; false where check() accepts
// neither.
template <class P>
bool place_codebook(P& plan, const Linear& op, const GpuSpec& gpu) {
  for (const bool near : {true, false}) {
    plan.codebook = near ? all_shared(op.weights.entries()) : all_global();
    if (check(plan, op, gpu).ok) return true;
  }
  return false;
}

// Loads of codes in whole words of the rows of codes.
template <class P>
void judge_code_words(Judge& judge, const P& plan, const Linear& op) {
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.code_words)),
                "code_words {} is not a power of two", plan.code_words);
  if (!judge.ok()) return;
  const std::int64_t row = op.weights.row_words(op.shape.in_features);
  judge.require(row % plan.code_words == 0,
                "code_words {} does not divide the {} words of a row of codes", plan.code_words,
                row);
}

// Refuses group_inputs in dataflows that sum products of several groups before they know a scale.
inline void judge_groups(Judge& judge, const VqFormat& format, std::string_view dataflow) {
  judge.require(
      format.group_inputs == 0,
      "weights: dataflow {} takes no scales of groups of inputs (group_inputs {}) in this "
      "format; use dataflow simt, mma, wgmma or wgmma_large_m",
      dataflow, format.group_inputs);
}

// Rules of dataflows that multiply bytes: the format, the GPU, and whole codebooks in shared
// memory.
template <class P>
void judge_bytes(Judge& judge, const P& plan, const Linear& op, const GpuSpec& gpu) {
  const VqFormat& format = op.weights;
  judge.require(gpu.bf16_products,
                "{} has no int8 mma, which dataflow {} takes; use dataflow simt or mma", gpu.name,
                dataflow_name(plan));
  const bool scaled = vq::scales_integers(P{}) && format.has_scaled_bytes();
  if (!scaled) judge_groups(judge, format, dataflow_name(plan));
  judge.require(format.has_own_entries() && (format.sums_are_bytes() || scaled),
                "weights: dataflow {} takes entries whose sums over the stages are bytes; set "
                "entry_type to int8, and stage_scales and common_scale to true, as aqlm-2x8i8 has "
                "them, or use another dataflow",
                dataflow_name(plan));
  const int entries = format.entries();
  judge.require(plan.codebook == all_shared(entries) ||
                    plan.codebook == all_replicated(entries, plan.codebook.copies),
                "dataflow {} has all {} entries in shared memory, once or in copies; set codebook "
                "so",
                dataflow_name(plan), entries);
}
// Placements that the space allows, of entries that are held in so many bytes.
inline std::vector<Placement> near_placements(const Linear& op, SpacePlacement allowed,
                                              int held_bytes) {
  std::vector<Placement> placements = whole_placements(op.weights, allowed, held_bytes);
  std::erase(placements, all_global());
  return placements;
}

// Outputs per warp must be whole MMAs.
template <class P>
void judge_outputs_per_warp(Judge& judge, const P& plan, const Linear& op) {
  const int outputs = vq::fragment_outputs(configured(plan, op));
  judge.require(plan.outputs_per_warp % outputs == 0,
                "outputs_per_warp {} is not a multiple of {}, the outputs of an mma",
                plan.outputs_per_warp, outputs);
}

// Rules of dataflows that use wgmma: the GPU, or else to use `instead`, and whole warpgroups.
template <class P>
void judge_warp_groups(Judge& judge, const P& plan, const GpuSpec& gpu, const char* instead) {
  judge.require(
      gpu.warpgroup_products,
      "{} ({}) has no wgmma, which dataflow {} takes and Hopper alone has; use dataflow {}",
      gpu.name, gpu.arch, dataflow_name(plan), instead);
  constexpr int kGroupThreads = 32 * vq::kGroupWarps;
  judge.require(plan.threads % kGroupThreads == 0,
                "threads {} are no whole warp groups of {}, as dataflow {} takes", plan.threads,
                kGroupThreads, dataflow_name(plan));
}
// Rules of wgmma with 16-bit elements: as many outputs and rows as an instruction has.
template <class P>
void judge_group_products(Judge& judge, const P& plan, const Linear& op) {
  judge_outputs_per_warp(judge, plan, op);
  judge.require(
      std::has_single_bit(static_cast<unsigned>(plan.rows_per_block)) && plan.rows_per_block >= 8,
      "rows_per_block {} is not a power of two from 8, as dataflow {} takes", plan.rows_per_block,
      dataflow_name(plan));
}

// The multiplying warps of a block must form whole teams that share the columns.
template <class P>
void judge_warps_along_columns(Judge& judge, const P& plan, int warps) {
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.warps_along_columns)),
                "warps_along_columns {} is not a power of two", plan.warps_along_columns);
  judge.require(warps % plan.warps_along_columns == 0,
                "warps_along_columns {} does not divide the {} warps of a block",
                plan.warps_along_columns, warps);
}

// Runs of codes in whole words, and chunks of whole runs.
template <class P>
void judge_runs(Judge& judge, const P& plan, const Linear& op) {
  judge_code_words(judge, plan, op);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  const int run = vq::run_words(config);
  constexpr int kMostWordsOfRun = 24;
  judge.require(run <= kMostWordsOfRun,
                "a run of codes of whole words is {} words, more than {}; use {}", run,
                kMostWordsOfRun,
                plan.fusion == LinearFusion::registers ? "another fusion or fewer code_words"
                                                       : "dataflow simt or fewer code_words");
  judge.require(plan.chunk_columns % vq::run_columns(config) == 0,
                "chunk_columns {} is not a multiple of the {} columns of a run", plan.chunk_columns,
                vq::run_columns(config));
}

// A block's codebook or scales in shared memory must serve all its outputs.
template <class Config>
void judge_tile_rows(Judge& judge, const Config& config, const char* what) {
  judge.require(config.unit_rows >= config.out_features ||
                    config.unit_rows % vq::outputs_per_block(config) == 0,
                "the {} rows of a tile are not a multiple of the {} outputs of a block, {}",
                config.unit_rows, vq::outputs_per_block(config), what);
}

// Blocks of an output as a cluster.
template <class Config>
void judge_cluster(Judge& judge, const Config& config, const GpuSpec& gpu) {
  judge.require(
      has_clusters(gpu.arch),
      "{} ({}) has no clusters of blocks, which combine cluster takes and sm_90 has first; "
      "use kernel or last_block",
      gpu.name, gpu.arch);
  const int splits = vq::splits(config);
  judge.require(splits >= 2 && splits <= vq::kMostClusterBlocks,
                "combine cluster takes 2 to {} splits, not {}; use {}", vq::kMostClusterBlocks,
                splits, splits < 2 ? "kernel" : "fewer, or kernel");
  judge.require(
      vq::sums_bytes(config) <= gpu.shared_bytes_per_block,
      "the sums of {} outputs and {} rows take {} bytes of a block's shared memory, {} has "
      "{}; lower threads, outputs_per_warp or rows_per_block, or use combine kernel",
      vq::outputs_per_block(config), config.rows_per_block, vq::sums_bytes(config), gpu.name,
      gpu.shared_bytes_per_block);
}

// Rules of all dataflows.
template <class P>
void judge_linear(Judge& judge, const P& plan, const Linear& op, const GpuSpec& gpu) {
  const int together = requires { plan.product_rows; }
  ? 1 : 4;
  judge.require(plan.rows_per_block % together == 0, "rows_per_block {} is not a multiple of {}",
                plan.rows_per_block, together);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  const std::int64_t chunk = vq::chunk_columns(config);
  constexpr bool kIsField = requires { plan.chunk_columns; };
  const char* const name = kIsField ? "chunk_columns" : "columns per chunk";
  judge.require(chunk % op.weights.vector_size == 0, "{} {} is not a multiple of vector_size {}",
                name, chunk, op.weights.vector_size);
  judge.require(config.unit_columns >= op.shape.in_features || chunk % config.unit_columns == 0 ||
                    config.unit_columns % chunk == 0,
                "{} {} neither divides nor is a multiple of the {} columns of a codebook", name,
                chunk, config.unit_columns);
  if constexpr (requires { plan.splits; }) {
    judge.require(plan.splits <= vq::chunks(config),
                  "splits {} are more than the {} chunks of {} columns", plan.splits,
                  vq::chunks(config), chunk);
  }
  constexpr int kMostSplits = 4096;
  judge.require(
      vq::splits(config) <= kMostSplits,
      "{} blocks would share the columns of an output, more than {}; use another dataflow",
      vq::splits(config), kMostSplits);
  judge_placement(judge, config.weights, vq::units_per_chunk(config), "weights");
  if (plan.codebook != all_global() || op.weights.stage_scales) {
    judge_tile_rows(judge, config, "whose codebook and scales kept near serve one tile");
  }
  if (!vq::holds_pairs(config)) {
    judge_pairs(judge, plan.combine, vq::outputs_per_block(config), op.shape.gate_rows);
  }
  constexpr bool kMayCluster = requires { P::kMayCluster; };
  const bool clusters = kMayCluster && vq::in_clusters(config);
  if (clusters) judge_cluster(judge, config, gpu);
  if (!judge.ok()) return;
  const vq::CallShape shape = call_shape(plan, op);
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
  constexpr std::int64_t kMostGrid = 65535;  // along z
  const std::int64_t slots = std::int64_t{vq::row_slots(config)} * vq::splits(config);
  judge.require(slots <= kMostGrid,
                "{} blocks of rows of all experts times {} splits are more than the {} blocks of a "
                "grid's last axis; use fewer splits or more rows_per_block",
                vq::row_slots(config), vq::splits(config), kMostGrid);
  if (!clusters) judge_combine(judge, plan.combine, vq::sharing_blocks(config), shape.counters);
}

// A block binds the codebooks of other columns at every chunk that begins in them.
template <class Config>
std::int64_t fills_a_block(const Config& config) {
  if (config.unit_columns >= config.in_features) return 1;
  const std::int64_t chunk = vq::chunk_columns(config);
  const std::int64_t columns = std::min<std::int64_t>(
      ceil_div(vq::chunks(config), vq::splits(config)) * chunk, config.in_features);
  return ceil_div(columns, std::max<std::int64_t>(chunk, config.unit_columns));
}

// The lanes of a warp look up codes of `lane_columns` columns at the same time: a sub-vector each,
// or those of a run.
template <class P>
PlanUse use_of(const P& plan, const Linear& op) {
  const auto config = configured(plan, op);
  std::int64_t lane_columns = std::int64_t{32} * op.weights.vector_size;
  if constexpr (requires { plan.fragment_rows; }) {  // columns of a run per lane
    lane_columns = vq::run_columns(config);
  }
  const vq::CallShape shape = call_shape(plan, op);
  PlanUse use{
      .threads = plan.threads, .blocks = shape.blocks(), .shared_bytes = shape.shared_bytes()};
  OperandUse weights{.operand = Operand::weights, .format = config.weights};
  weights.units = vq::units_per_chunk(config);
  weights.lane_units =
      static_cast<int>(std::min(weights.units, ceil_div(lane_columns, config.unit_columns)));
  const int matrices = op.shape.most_touched();
  weights.tensor_units =
      matrices * weight_units(op.weights, op.shape.out_features, op.shape.in_features);
  const double elements = matrices * static_cast<double>(op.shape.out_features) *
                          static_cast<double>(op.shape.in_features);
  const double reads = static_cast<double>(blocks_of_rows(op, plan)) / matrices;
  weights.lookups = elements / op.weights.vector_size * op.weights.num_codebooks * reads;
  weights.fills = static_cast<double>(use.blocks) * static_cast<double>(fills_a_block(config));
  weights.code_bytes =
      matrices * stored_code_bytes(op.shape.out_features, op.shape.in_features, op.weights);
  weights.code_reads = reads;
  use.operands = {weights};
  return use;
}

PlanUse use_of(const LinearSlicedCodebook&, const Linear&);

// Chunks per block, one after the other.
template <class Config>
double block_chunks(const Config& config) {
  return static_cast<double>(
      ceil_div(vq::chunks(config), static_cast<std::int64_t>(vq::splits(config))));
}

// Loads of codes by all warps in `runs` runs, and of x, staged in `chunks` chunks. A wavefront is a
// 128-byte line for 8 lanes: lanes load codes of 8 outputs, each row in its own line whatever a
// load's width; x is loaded and stored by adjacent steps of a row.
template <class Config>
void add_loads(BlockWork& to, const Config& c, double chunks, double runs, double sides) {
  constexpr double kRows = 8;
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double codes = runs * tiles * sides * vq::run_words(c) / c.code_words * kRows;
  const double staged = chunks * vq::chunk_columns(c) * c.rows_per_block;
  const double lines = 8.0 / vq::steps_together(c);
  to.passes += codes + staged * 2 / 128 * (1 + lines);
  to.l2_bytes += chunks * vq::chunk_columns(c) * 2.0 * std::min(c.rows, c.rows_per_block);
  to.prologue += chunks + 1;
}

// Wavefronts of loads of scales of groups of inputs, as of codes in add_loads(): of runs, or for as
// many as the words last that lanes share.
template <class Config>
double scale_passes(const Config& c, double runs, double sides) {
  const vq::GroupScales groups = vq::group_scales(c.weights);
  if (groups.inputs == 0) return 0;
  constexpr double kRows = 8, kSharedBits = 128;
  const int bits = groups.group_bits();
  const double lasting = kSharedBits / bits * groups.inputs / vq::run_columns(c);
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  return runs * tiles * sides * kRows * (groups.bits > 0 ? 2 : 1) / std::max(lasting, 1.0);
}

// Extra costs of 16-bit MMAs, fitted (docs/lab/cost-model.md): per further chunk, and the
// start if no merge kernel hides it.
template <class Config>
void add_waits(BlockWork& to, const Config& c, double chunks) {
  constexpr double kOfChunk = 2, kOfStart = 6;
  to.prologue += kOfChunk * (chunks - 1);
  if (c.splits == 1) to.start += kOfStart;
}

// Partials of many rows are stored behind all products, and read again: nothing overlaps them.
// Where the next call begins with a kernel that makes x, that waits for the one that merges: as
// fitted.
template <class Config>
void add_partials(BlockWork& to, const Config& c, bool prepack_x) {
  if (!vq::stores_partials(c)) return;
  const double bytes_a_clock = prepack_x ? 16 : kL2Bytes;
  const double bytes = 2.0 * 4 * vq::outputs_per_block(c) * vq::block_rows(c);
  to.merge_turns += bytes / (kLatencyCycles * bytes_a_clock);
  if (prepack_x) to.merge_launches += 1.5;
}

// True if the next call's blocks fill their tables while this call's merge kernel runs: no other
// kernel precedes them.
template <class Config>
bool fills_behind_merging(const Config& c) {
  return vq::stores_partials(c) && c.combine == Combine::kernel && c.prepack_x == 0;
}

// What an SM is spared in byte GEMMs, with which their coefficients are fitted.
inline void share_as_bytes(BlockWork& to) { to.spared = to.spared_of_several = 0.4; }

// Constants of dataflows with byte operands, fitted apart (docs/lab/cost-model.md):
// filling a table takes as long with any number of threads; cluster barriers take less, and cluster
// loads more.
inline void count_bytes(BlockWork& to) {
  constexpr double kThreads = 512;
  to.fill *= to.threads / kThreads;
  share_as_bytes(to);
  to.cluster_us = 0.7;
  to.peer_bytes = 12;
}

}  // namespace vqgen

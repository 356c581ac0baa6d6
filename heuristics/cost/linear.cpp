// Counts of the products' dataflows, by what templates/vq/ops/linear_*.cuh do.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/cost/work.h"

namespace vqgen {
namespace {

struct Count {
  const Linear& op;
  const vq::LinearConfig config;
  const OperandUse& use;
  ConflictTable& conflicts;
  double warps = config.threads / 32.0;
  // Of a block: chunks one after the other.
  double block_chunks =
      static_cast<double>(ceil_div(vq::chunks(config), static_cast<std::int64_t>(config.splits)));
};

// Instructions that turn the entry of a code into numbers, a warp: nothing for a table of elements;
// five for four bytes; for the lattice a parity, and three a word of two elements
// (docs/dataflows/README.md).
double rebuild_instructions(const VqFormat& format) {
  constexpr double kParity = 8;
  if (format.entry_type == EntryType::int8) return 5 * format.vector_size / 4.0;
  return format.decoder == Decoder::e8p ? kParity + 3 * format.vector_size / 2.0 : 0;
}

// Passes of loads from global memory: a line of 128 bytes each, for 8 lanes that are served at
// once. Lanes load codes of 8 outputs, each row a line of its own, whatever a load's width.
double code_passes(const vq::LinearConfig& c, double runs, double sides) {
  constexpr double kRows = 8;
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  return runs * tiles * sides * vq::run_words(c) / c.code_words * kRows;
}
// x, `elements` of 16 bits, is fetched by steps of a row side by side, and stored.
double x_passes(const vq::LinearConfig& c, double elements) {
  const double lines = 8.0 / vq::steps_together(c);
  return elements * 2 / 128 * (1 + lines);
}

void count_fragments(BlockWork& to, const Count& count) {
  const vq::LinearConfig& c = count.config;
  const VqFormat& format = count.op.weights;
  const double runs = static_cast<double>(c.chunk_columns) / vq::run_columns(c);
  const double turns = count.block_chunks * std::ceil(runs / c.warps_along_columns);
  const bool halves = c.fragment_rows == 4;
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double row_tiles = c.rows_per_block / c.fragment_rows;
  const double sides = halves ? 1 : 2;  // outputs whose entries a lane looks up for one product
  const double octets = turns * count.warps * vq::run_steps(c);  // of all warps
  const double entries = octets * tiles * sides * vq::octet_codes(c.weights);
  const bool scaled_entries = format.stage_scales && !vq::scaled_sums(c);
  const double passes = scaled_entries ? 1 : format.residuals;
  add_lookups(to, count.use, entries, count.conflicts);
  // Else stages with scales are summed in fp32 and rounded again.
  const double scaled = scaled_entries ? 2.0 * format.vector_size : 0;
  to.arithmetic += entries * (rebuild_instructions(format) + scaled);
  to.products += octets * tiles * passes * row_tiles * sides;
  to.arithmetic += octets * row_tiles;  // x as operands
  to.turns += octets;
  to.passes += octets * row_tiles * (halves ? 2 : 4);
  const double staged = count.block_chunks * c.chunk_columns * c.rows_per_block;
  to.passes += code_passes(c, turns * count.warps, sides) + x_passes(c, staged);
  to.l2_bytes += count.block_chunks * c.chunk_columns * 2.0 * std::min(c.rows, c.rows_per_block);
  to.fill += staged / (halves ? 4 : 8) / c.threads;
  to.prologue += count.block_chunks + 1;
  to.chain += turns * tiles;
  for (int half = c.warps_along_columns / 2; half > 0; half /= 2) to.prologue += 0.5;
  // Sums (two chains where there are few), codes of this run and the next, x; and what ptxas took
  // beside on sm_90: within a fifth of seven kernels compiled.
  const double sums = vq::scaled_sums(c) ? format.residuals : 1;
  const double chains = sums * (sums * tiles * row_tiles < 4 && vq::run_octets(c) % 2 == 0 ? 2 : 1);
  constexpr double kBeside = 48;
  to.registers =
      static_cast<int>(kBeside + chains * tiles * row_tiles * 4 +
                       2 * tiles * sides * vq::run_words(c) + row_tiles * (halves ? 2 : 4));
}

void count_warpgroups(BlockWork& to, const Count& count) {
  const vq::LinearConfig& c = count.config;
  const VqFormat& format = count.op.weights;
  const double runs = count.block_chunks * c.chunk_columns / vq::run_columns(c);
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double steps = count.warps * runs * vq::run_steps(c);  // of all warps
  const double entries = (count.warps - c.idle_warps) * runs * vq::run_steps(c) * tiles * 2 *
                         vq::octet_codes(c.weights);
  add_lookups(to, count.use, entries, count.conflicts);
  // Stages are added up in pairs of elements or, where they have scales, in fp32.
  const double summed = format.stage_scales    ? 2.0 * format.vector_size
                        : format.residuals > 1 ? format.vector_size / 2.0
                                               : 0;
  to.arithmetic += entries * (rebuild_instructions(format) + summed);
  to.turns += steps;
  // Twice the rate of m16n8k16; an instruction of few rows takes as long as one of 16.
  constexpr double kRate = 0.5;
  to.products += steps * tiles * 2 * std::max(c.rows_per_block, 16) / 8 * kRate;
  // A warp group reads the rows once a product.
  to.passes += steps / vq::kGroupWarps * tiles * 2 * vq::product_bytes(c) / 128;
  const double staged = count.block_chunks * c.chunk_columns * c.rows_per_block;
  to.passes += code_passes(c, runs * count.warps, 2) + x_passes(c, staged);
  to.l2_bytes += count.block_chunks * c.chunk_columns * 2.0 * std::min(c.rows, c.rows_per_block);
  to.prologue += count.block_chunks + 1;
  to.chain += runs * tiles;
  to.registers = vq::warpgroup_registers(c);
}

void count_tables(BlockWork& to, const Count& count) {
  const vq::LinearConfig& c = count.config;
  const double rows = vq::block_rows(c);
  const double entries = vq::entries(c.weights);
  const double tables = rows * vq::row_tables(c);
  // A warp 16 entries a turn: 4 products, 8 stores of 2 passes.
  to.products += tables * entries / 16 * 4;
  to.passes += tables * entries;
  to.arithmetic += tables * entries / 16 * 40;
  to.fill += tables * entries / 16 / count.warps;
  const double lookups = count.warps * c.outputs_per_warp * tables;
  to.lookups += lookups;
  to.passes += lookups;
  // A transposing sum: a shuffle, a select and an addition for each output but one of a group.
  to.arithmetic += count.warps * c.outputs_per_warp * rows * 4;
  to.prologue += 2;
  to.chain += static_cast<double>(c.outputs_per_warp) / vq::table_group(c);
  to.registers = 64;
}

void count_slices(BlockWork& to, const Count& count) {
  const vq::LinearConfig& c = count.config;
  const double rows = vq::block_rows(c);
  const double groups = count.warps * c.outputs_per_warp / vq::slice_group(c);  // of all warps
  const double steps = groups * vq::slice_steps(c);
  const double lookups = steps * vq::slice_group(c) * vq::slice_run(c);
  to.lookups += lookups;
  add_levels(to, count.use, lookups, count.conflicts);
  // x, codes, and the sum of a group over the lanes.
  const double x_words = vq::slice_run(c) * vq::slice_x_words(c);
  to.passes += steps * (rows * x_words + vq::slice_group(c) * c.code_words) + groups * rows * 4;
  constexpr double kAddress = 2;
  const double multiply =
      c.weights.int8_entries ? vq::slice_x_words(c) : 2.0 * vq::slice_elements(c);
  to.arithmetic += lookups * (kAddress + rows * multiply) + groups * rows * 12;
  // In place of add_fill()'s loads one by one: 8 are in flight, so that entries come as fast as the
  // second-level cache gives them, 64 bytes each of a latency's 300 cycles.
  to.fill = vq::entries(c.weights) * c.weights.vector_size * 2.0 / (300 * 64);
  to.prologue += c.weights.int8_entries ? 3 : 2;
  to.chain += steps / count.warps;
  to.registers = 128;
}

void count_lanes(BlockWork& to, const Count& count) {
  const vq::LinearConfig& c = count.config;
  const VqFormat& format = count.op.weights;
  const double rows = vq::block_rows(c);
  const double subs = std::ceil(static_cast<double>(c.chunk_columns) / format.vector_size / 32);
  const double turns = count.block_chunks * c.outputs_per_warp * subs;
  const double vectors = count.warps * turns;
  add_lookups(to, count.use, vectors * format.residuals, count.conflicts);
  to.arithmetic += vectors * format.residuals * (rebuild_instructions(format) + format.vector_size);
  to.arithmetic += vectors * rows * format.vector_size * 1.5;  // x, and multiply-adds
  to.passes += vectors * rows * format.vector_size;
  const double staged = count.block_chunks * c.chunk_columns * rows;
  to.passes += staged * 4 / 128;
  to.l2_bytes += staged * 2;
  to.fill += staged / c.threads;
  to.prologue += count.block_chunks + 1;
  to.chain += turns;
  to.registers = 40 + static_cast<int>(c.outputs_per_warp * rows);
}

BlockWork counted(const Linear& op, const LinearPlan& plan, const PlanUse& use,
                  ConflictTable& conflicts) {
  const OperandUse& weights = use.operands.front();
  BlockWork work{.threads = use.threads, .shared_bytes = use.shared_bytes, .blocks = use.blocks};
  work.splits = plan.splits;
  work.memory_bytes = weights.code_bytes + static_cast<double>(weights.codebook_bytes());
  const double sums =
      static_cast<double>(op.shape.rows) * static_cast<double>(op.shape.out_features);
  if (plan.splits > 1) work.partial_bytes = 2 * 4 * sums * plan.splits;
  if (plan.combine == Combine::last_block) {
    const vq::LinearConfig config = kernel_config(op, plan);
    const int results = vq::outputs_per_block(config) * vq::block_rows(config);
    work.merge_turns =
        static_cast<double>(ceil_div(results, plan.threads) * ceil_div(plan.splits, 16));
  }
  add_fill(work, weights);
  work.l2_bytes += weights.code_bytes * weights.code_reads / static_cast<double>(use.blocks);
  const Count count{op, kernel_config(op, plan), weights, conflicts};
  switch (plan.dataflow) {
    case LinearDataflow::fragments:
      count_fragments(work, count);
      break;
    case LinearDataflow::warpgroups:
      count_warpgroups(work, count);
      break;
    case LinearDataflow::tables:
      count_tables(work, count);
      break;
    case LinearDataflow::lanes:
      count_lanes(work, count);
      break;
    case LinearDataflow::slices:
      count_slices(work, count);
      break;
  }
  return work;
}

}  // namespace

BlockWork block_work(const Problem& problem, const LinearPlan& plan, ConflictTable& conflicts) {
  return counted(*as_linear(problem), plan, plan_use(plan, problem), conflicts);
}

AlikeWork alike_work(const Problem& problem, const LinearPlan& plan, ConflictTable& conflicts) {
  LinearPlan bare = plan;
  bare.codebook = all_global();  // fills nothing, takes no shared memory, has no conflicts
  PlanUse use = plan_use(bare, problem);
  AlikeWork alike{counted(*as_linear(problem), bare, use, conflicts),
                  std::move(use.operands.front())};
  alike.bare.lines = alike.bare.gathered_bytes = 0;
  return alike;
}

std::optional<BlockWork> placed_work(const AlikeWork& alike, const Placement& placement,
                                     const GpuSpec& gpu, ConflictTable& conflicts) {
  BlockWork work = alike.bare;
  OperandUse weights = alike.weights;
  vq::Carver without;
  vq::carve_codebook(weights.format, weights.units, without);
  weights.format.placement = {placement.registers, placement.replicated, placement.copies,
                              placement.shared};
  vq::Carver with;
  vq::carve_codebook(weights.format, weights.units, with);
  work.shared_bytes += with.next - without.next;
  if (work.shared_bytes > gpu.shared_bytes_per_block) return std::nullopt;
  add_fill(work, weights);
  if (work.entries > 0) add_levels(work, weights, work.entries, conflicts);
  return work;
}

}  // namespace vqgen

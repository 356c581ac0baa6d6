// Plans of the wgmma_large_m GEMM. Candidates vary a block's warpgroups and rows, the outputs of a
// warp, the length of a load, and the splits.
#include <set>

#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

// The longest chunk of whole runs within `columns` that codebook units allow; 0 where none is.
int chunk_of(const LinearWgmmaLargeM& plan, const Linear& op, std::int64_t columns) {
  const auto config = configured(plan, op);
  const std::int64_t run = vq::turn_columns(config);
  return static_cast<int>(
      fitting_chunk(std::max(run, columns), run, config.unit_columns, op.shape.in_features));
}

// Bytes are added up where the sums of all columns have one scale.
int adds_bytes(const Linear& op) {
  return op.weights.sums_are_bytes() && vq::units_per_row(configured(LinearWgmmaLargeM{}, op)) == 1
             ? 1
             : 0;
}

// Columns of a chunk, after which codebooks may change.
constexpr std::int64_t kChunkColumns = 512;

}  // namespace

void judge_plan(Judge& judge, const LinearWgmmaLargeM& plan, const Linear& op, const GpuSpec& gpu) {
  judge_warp_groups(judge, plan, gpu, "mma");
  judge_group_products(judge, plan, op);
  const int groups = plan.threads / 32 / vq::kGroupWarps;
  const int along = plan.groups_along_columns;
  judge.require(std::has_single_bit(static_cast<unsigned>(along)) && groups % along == 0,
                "groups_along_columns {} is not a power of two that divides the {} warp groups of "
                "a block",
                along, groups);
  if (plan.byte_sums != 0) judge_bytes(judge, plan, op, gpu);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  const int turn = vq::turn_columns(config);
  judge.require(plan.chunk_columns % turn == 0,
                "chunk_columns {} is not a multiple of the {} columns of a step, in which each of "
                "{} groups has a run",
                plan.chunk_columns, turn, plan.groups_along_columns);
  judge.require(plan.chunk_columns <= ceil_div(op.shape.in_features, turn) * turn,
                "chunk_columns {} are more than the {} inputs in whole runs of {}",
                plan.chunk_columns, op.shape.in_features, turn);
  judge.require(plan.byte_sums == 0 || vq::units_per_row(config) == 1,
                "{} codebooks serve the columns of an output, where byte_sums 1 takes one",
                vq::units_per_row(config));
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(vq::warpgroup_registers(config) <= most,
                "sums, operands and codes take {} registers per thread, of {}; lower threads, "
                "outputs_per_warp, rows_per_block or code_words",
                vq::warpgroup_registers(config), most);
  judge_linear(judge, plan, op, gpu);
}

// Enough outputs per block to fill the GPU once, then splits.
LinearWgmmaLargeM choose_plan(LinearWgmmaLargeM plan, const Linear& op, const GpuSpec& gpu) {
  plan.rows_per_block = rows_of_block(planned_rows(op), 128);
  plan.byte_sums = adds_bytes(op);
  const int entries = op.weights.entries();
  for (const Placement& codebook : {all_replicated(entries, phase_lanes(op.weights.held_bytes())),
                                    all_shared(entries), all_global()}) {
    plan.codebook = codebook;
    for (const int threads : {512, 256, 128}) {
      plan.threads = threads;
      for (const int words : {4, 2, 1}) {
        plan.code_words = words;
        plan.chunk_columns = chunk_of(plan, op, kChunkColumns);
        if (plan.chunk_columns == 0) continue;
        plan.splits = splits_in_chunks(plan, op, gpu.sms / blocks_of_split(op, plan));
        if (check(plan, op, gpu).ok) return clustered(plan, op, gpu);
      }
    }
  }
  return plan;
}

void add_candidates(Candidates& to, LinearWgmmaLargeM plan, const Linear& op,
                    SpacePlacement allowed) {
  using P = LinearWgmmaLargeM;
  constexpr int kFewestRows = 9;
  if (!to.gpu.warpgroup_products || planned_rows(op) < kFewestRows) return;
  plan.byte_sums = adds_bytes(op);
  const std::vector<Placement> placements =
      plan.byte_sums != 0 ? near_placements(op, allowed, op.weights.held_bytes())
                          : whole_placements(op.weights, allowed);
  // Groups that share columns, and x laid out by each block, were measured of bytes and more rows.
  constexpr int kMeasuredRows = 33;
  const bool measured = plan.byte_sums != 0 && planned_rows(op) >= kMeasuredRows;
  const std::set<int> rows{rows_of_block(planned_rows(op), 64),
                           rows_of_block(planned_rows(op), 128),
                           rows_of_block(planned_rows(op), 256)};
  for (const int of_block : rows) {
    plan.rows_per_block = of_block;
    for_each_of(plan,
                {{&P::outputs_per_warp, {16, 32}},
                 {&P::threads, {128, 256, 384, 512}},
                 {&P::groups_along_columns, measured ? std::vector{1, 2} : std::vector{1}},
                 {&P::prepack_x, measured ? std::vector{1, 0} : std::vector{1}},
                 {&P::code_words, {4, 2, 1}}},
                [&] {
                  if (plan.threads / 128 % plan.groups_along_columns != 0) return;
                  plan.chunk_columns = chunk_of(plan, op, kChunkColumns);
                  if (plan.chunk_columns == 0) return;
                  std::set<int> cuts;
                  for (const int waves : {1, 2, 4}) {
                    cuts.insert(splits_in_chunks(
                        plan, op, std::int64_t{waves} * to.gpu.sms / blocks_of_split(op, plan)));
                  }
                  for (const int splits : cuts) {
                    plan.splits = splits;
                    if (plan.byte_sums == 0) {
                      to.add_each(plan, placements);
                      continue;
                    }
                    for (const Placement& each : placements) {  // never global
                      plan.codebook = each;
                      to.add(plan);
                    }
                  }
                });
  }
}

void count_work(BlockWork& to, const LinearWgmmaLargeM& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double chunks = block_chunks(c);
  const VqFormat& format = op.weights;
  const double runs = chunks * vq::chunk_columns(c) / vq::turn_columns(c);  // of a warp
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double steps = warps * runs * vq::run_steps(c);  // of all warps
  const double entries = steps * tiles * 2 * vq::octet_codes(c.weights);
  add_lookups(to, use.operands.front(), entries, conflicts);
  if (plan.byte_sums != 0) {
    // Four bytes an instruction, and their sums as elements.
    const double words = format.vector_size / 4.0;
    to.arithmetic +=
        entries * (words + byte_instructions(format)) + entries / format.num_codebooks * 5 * words;
  } else {
    to.arithmetic += entries * operand_instructions(format);
  }
  // A spilled value of byte sums is needed once in several steps; fitted.
  constexpr double kStepsOfSpill = 10;
  to.turns += plan.byte_sums != 0 ? steps / kStepsOfSpill : steps;
  // Twice the rate of m16n8k16; an instruction of few rows takes as long as one of 64: 32 clocks
  // (docs/lab/hardware-rates.md).
  constexpr double kRate = 0.5;
  to.products += steps * tiles * 2 * std::max(c.rows_per_block, 64) / 8 * kRate;
  // Codes; a warpgroup reads x once per MMA, and it is copied once.
  constexpr double kRows = 8;
  to.passes += runs * warps * tiles * 2 * vq::run_words(c) / c.code_words * kRows;
  to.passes += scale_passes(c, runs * warps, 2);
  to.passes += steps / vq::kGroupWarps * tiles * 2 * vq::product_bytes(c) / 128;
  to.passes += chunks * vq::chunk_bytes(c) / 128;
  // Work that does not overlap with MMAs, in latencies: the pre-pass and the first piece, or x that
  // all blocks load at once; and the reduction across groups. Byte sums have their own measured
  // constants (docs/lab/gemm-large-m.md).
  const bool bytes = plan.byte_sums != 0;
  const double before = bytes ? 23 : 2;
  constexpr double kOwn = 14, kBytesAClock = 32;
  const double x = chunks * vq::chunk_bytes(c);
  if (plan.prepack_x == 1) {
    to.prologue += chunks + before;
    to.l2_bytes += x;
  } else {
    to.prologue += kOwn + x / kBytesAClock / kLatencyCycles;
    to.passes += x / 128;
  }
  if (c.groups_along_columns > 1) {
    to.prologue += 2 + 2.0 * static_cast<double>(vq::handed_over_bytes(c)) / 128 / kLatencyCycles;
  }
  // The epilogue follows all MMAs: clocks per sum, for y and for partials, and the extra time of a
  // lone byte warpgroup. Fitted, as are the bytes per clock that a cluster exchanges
  // (docs/lab/cost-model.md).
  constexpr double kOfResult = 0.47, kOfPartial = 0.13, kOfLoneGroup = 1.5;
  const double sums = vq::outputs_per_block(c) * vq::block_rows(c);
  if (c.splits == 1) to.prologue += kOfResult * sums / kLatencyCycles;
  if (vq::stores_partials(c) && plan.prepack_x == 1) {
    to.prologue += kOfPartial * sums / kLatencyCycles;
  }
  if (bytes && c.threads / 32 == vq::kGroupWarps) to.prologue += kOfLoneGroup;
  to.cluster_us = 0.7;
  if (bytes) share_as_bytes(to);
  to.peer_bytes = bytes ? 19 : 10;
  add_partials(to, c, false);
  to.chain += runs * tiles;
  to.registers = vq::warpgroup_registers(c);
}

}  // namespace vqgen

// Plans of the int8_wgmma GEMM. Candidates vary a block's warpgroups and rows, the length of a load
// and of a chunk, and the splits.
#include <set>

#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

constexpr int kBytegroupRows = 64;  // rows per block, by default

// The most splits whose clusters all run at once, where there are `blocks` of each split.
int most_clustered(const GpuSpec& gpu, std::int64_t blocks) {
  int splits = vq::kMostClusterBlocks;
  while (splits > 1 && blocks * splits > cluster_sms(gpu, splits)) --splits;
  return splits;
}

// Chunks of whole runs of about `columns`, two steps at least.
int chunk_of(const LinearInt8Wgmma& plan, const Linear& op, std::int64_t columns) {
  const std::int64_t run = vq::run_columns(configured(plan, op));
  return static_cast<int>(std::max<std::int64_t>(ceil_div(std::int64_t{64}, run), columns / run) *
                          run);
}

}  // namespace

void judge_plan(Judge& judge, const LinearInt8Wgmma& plan, const Linear& op, const GpuSpec& gpu) {
  const bool bytes =
      !gpu.warpgroup_products && check(choose_plan(LinearInt8Mma{}, op, gpu), op, gpu).ok;
  judge_warp_groups(judge, plan, gpu, bytes ? "int8_mma" : "mma");
  judge_bytes(judge, plan, op, gpu);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.rows_per_block)) &&
                    plan.rows_per_block >= 8 && plan.rows_per_block <= 128,
                "rows_per_block {} is not a power of two from 8 to 128, as dataflow int8_wgmma "
                "takes",
                plan.rows_per_block);
  judge.require(plan.chunk_columns >= 64, "chunk_columns {} are less than two steps of 32",
                plan.chunk_columns);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  judge.require(vq::units_per_row(config) == 1,
                "{} codebooks serve the columns of an output, where dataflow int8_wgmma takes one; "
                "use dataflow int8_mma",
                vq::units_per_row(config));
  constexpr std::int64_t kMostColumns = 2147483647 / (127 * 128);
  judge.require(op.shape.in_features <= kMostColumns,
                "sums of integers over {} columns pass 32 bits; use dataflow int8_mma",
                op.shape.in_features);
  constexpr int kMostOctets = 16;  // per lane: 4 registers each, before sums and codes take them
  judge.require(plan.prepack_x == 1 || vq::share_octets(config) <= kMostOctets,
                "a block turns {} columns to bytes at once, more than {}; use more splits or "
                "prepack_x 1",
                std::int64_t{vq::staged_chunks(config)} * plan.chunk_columns, 256 * kMostOctets);
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(vq::bytegroup_registers(config) <= most,
                "sums, operands and codes take {} registers per thread, of {}; lower threads, "
                "rows_per_block or code_words",
                vq::bytegroup_registers(config), most);
  judge_linear(judge, plan, op, gpu);
}

// Enough outputs per block to fill the GPU once, then splits.
LinearInt8Wgmma choose_plan(LinearInt8Wgmma plan, const Linear& op, const GpuSpec& gpu) {
  plan.rows_per_block = rows_of_block(planned_rows(op), kBytegroupRows);
  const int lanes = phase_lanes(op.weights.held_bytes());
  for (const Placement& codebook :
       {all_replicated(op.weights.entries(), lanes), all_shared(op.weights.entries())}) {
    plan.codebook = codebook;
    for (const int threads : {512, 256, 128}) {
      plan.threads = threads;
      for (const int words : {4, 2, 1}) {
        plan.code_words = words;
        plan.chunk_columns = chunk_of(plan, op, 256);
        plan.splits = splits_in_chunks(plan, op, gpu.sms / blocks_of_split(op, plan));
        if (check(plan, op, gpu).ok) return clustered(plan, op, gpu);
      }
    }
  }
  return plan;
}

void add_candidates(Candidates& to, LinearInt8Wgmma plan, const Linear& op,
                    SpacePlacement allowed) {
  using P = LinearInt8Wgmma;
  if (!op.weights.sums_are_bytes() || !to.gpu.warpgroup_products) return;
  const std::vector<Placement> placements = near_placements(op, allowed, op.weights.held_bytes());
  plan.rows_per_block = rows_of_block(planned_rows(op), kBytegroupRows);
  for_each_of(plan, {{&P::threads, {256, 384, 512}}, {&P::code_words, {4, 2, 1}}}, [&] {
    for (const int columns : {256, 512}) {
      plan.chunk_columns = chunk_of(plan, op, columns);
      const std::int64_t blocks = blocks_of_split(op, plan);
      std::set<int> cuts{splits_in_chunks(plan, op, most_clustered(to.gpu, blocks))};
      for (const int waves : {1, 2}) {
        cuts.insert(splits_in_chunks(plan, op, std::int64_t{waves} * to.gpu.sms / blocks));
      }
      for (const int splits : cuts) {
        plan.splits = splits;
        for (const int prepack_x : {1, 0}) {
          plan.prepack_x = prepack_x;
          for (const Placement& each : placements) {
            plan.codebook = each;
            to.add(plan);
          }
        }
        plan.prepack_x = 1;
      }
    }
  });
}

void count_work(BlockWork& to, const LinearInt8Wgmma& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double chunks = block_chunks(c);
  const VqFormat& format = op.weights;
  const double runs = chunks * vq::chunk_columns(c) / vq::run_columns(c);
  const double steps = warps * runs * vq::run_steps(c);  // of all warps
  const double lookups = steps * 2 * vq::octet_codes(c.weights);
  add_lookups(to, use.operands.front(), lookups, conflicts);
  count_bytes(to);
  const double words = format.vector_size / 4.0;
  to.arithmetic += lookups * (1 + words + byte_instructions(format)) +
                   lookups / format.num_codebooks * words * 2;
  to.turns += steps;
  // Twice the rate of m16n8k32; an instruction of few columns takes as long as one of 64: 32 clocks
  // (docs/lab/hardware-rates.md).
  constexpr double kRate = 0.5;
  to.products += steps * std::max(vq::product_columns(c), 64) / 8 * kRate;
  // Codes; a warpgroup reads x once per MMA, and it is copied once.
  constexpr double kRows = 8;
  to.passes += runs * warps * 2 * vq::run_words(c) / c.code_words * kRows;
  to.passes += steps / vq::kGroupWarps * vq::step_bytes(c) / 128;
  to.passes += chunks * vq::chunk_bytes(c) / 128;
  to.l2_bytes += chunks * vq::chunk_bytes(c);
  if (plan.prepack_x == 1) {
    to.prologue += chunks / 2 + 2;  // includes the pre-pass
    // Fitted: clusters merge more slowly beside the pre-pass of the next call.
    to.exchanged_bytes *= 2;
  } else {
    // Octets that a lane converts to bytes, at about 60 instructions, and their loads; and a fitted
    // cost per row. Warps beyond the rows have none.
    constexpr double kOctetCycles = 60, kRowCycles = 25;
    const double octets = std::ceil(c.rows_per_block / warps) * vq::share_octets(c);
    const double making = std::min(warps, 1.0 * c.rows_per_block);
    const double cycles = octets * making / 4 * kOctetCycles + c.rows_per_block * kRowCycles;
    to.prologue += cycles / kLatencyCycles;
  }
  // Nothing overlaps what the first chunk of a ring takes, or of x that is there at once the first
  // columns, as fitted.
  constexpr double kFirstColumns = 128;
  const double columns = chunks * vq::chunk_columns(c);
  const double first = plan.prepack_x == 1 ? vq::chunk_columns(c) : kFirstColumns;
  to.prologue += to.passes * first / columns / kLatencyCycles;
  add_partials(to, c, plan.prepack_x == 1);
  if (fills_behind_merging(c)) to.hidden_fill = 0.25 * to.fill;  // fitted
  to.chain += runs;
  to.registers = vq::bytegroup_registers(c);
}

}  // namespace vqgen

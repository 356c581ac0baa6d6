// Plans of the wgmma GEMM. Candidates vary a block's warpgroups and their outputs, which decide how
// often x is read; the length of a load; chunks whose x a thread loads in one or two steps;
// prefetched lookups; and splits that fill the GPU once, twice and four times.
#include <set>

#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

constexpr int kWarpgroupRows = 256;  // rows per MMA

// Sets the longest chunk of whole runs whose x a thread fetches in `steps` rows, and the splits
// that give each SM a block; false if check() accepts none.
bool fit_chunk(LinearWgmma& plan, const Linear& op, const GpuSpec& gpu, int steps) {
  const auto config = configured(plan, op);
  const int run = vq::run_columns(config);
  const std::int64_t most =
      std::clamp<std::int64_t>(std::int64_t{32} * steps * plan.threads / plan.rows_per_block / run,
                               1, ceil_div(op.shape.in_features, run));
  const std::int64_t blocks = blocks_of_split(op, plan);
  for (std::int64_t runs = most; runs >= 1; --runs) {
    plan.chunk_columns = static_cast<int>(runs * run);
    plan.splits = static_cast<int>(std::clamp<std::int64_t>(
        gpu.sms / blocks, 1, ceil_div(op.shape.in_features, plan.chunk_columns)));
    if (place_codebook(plan, op, gpu)) return true;
  }
  return false;
}

// Idle warps with which the busiest SM has the fewest outputs, if all blocks of a split take
// equally long; 0 if none helps.
int evening_fetch_only_warps(const Candidates& to, LinearWgmma plan, const Linear& op) {
  int best = 0;
  std::int64_t fewest = 0;
  for (int idle = 0; idle < vq::kGroupWarps; ++idle) {
    plan.fetch_only_warps = idle;
    const std::int64_t outputs = vq::outputs_per_block(configured(plan, op));
    const std::int64_t busiest =
        outputs * ceil_div(blocks_of_split(op, plan), std::int64_t{to.gpu.sms});
    if (idle == 0 || busiest < fewest) fewest = busiest, best = idle;
  }
  return best;
}

void add_cuts(Candidates& to, LinearWgmma plan, const Linear& op,
              std::span<const Placement> placements) {
  const auto config = configured(plan, op);
  const std::int64_t run = vq::run_columns(config);
  const std::int64_t blocks = blocks_of_split(op, plan);
  for (const int steps : {1, 2}) {
    const std::int64_t columns = std::int64_t{32} * steps * plan.threads / plan.rows_per_block;
    for (const int waves : {1, 2, 4}) {
      const std::int64_t splits =
          std::max<std::int64_t>(1, std::int64_t{waves} * to.gpu.sms / blocks);
      const std::int64_t share = ceil_div(op.shape.in_features, splits);
      const std::int64_t chunk =
          fitting_chunk(std::max(run, std::min(columns, ceil_div(share, run) * run)), run,
                        config.unit_columns, op.shape.in_features);
      if (chunk == 0) continue;
      plan.chunk_columns = static_cast<int>(chunk);
      plan.splits = static_cast<int>(even_splits(ceil_div(op.shape.in_features, chunk), splits));
      for (const int ahead : {0, 1}) {
        plan.prefetch_steps = ahead;
        to.add_each(plan, placements);
      }
    }
  }
}

// Share of the lookups' wavefronts that counts. It is below 1 for codebooks of 256 entries of 8
// elements with a copy per lane; fitted by the number of rows.
double share_of_passes(const vq::FormatConfig& format, int rows) {
  const bool small = format.decoder == Decoder::table && !format.int8_entries &&
                     format.vector_size == 8 && vq::entries(format) <= 256 &&
                     vq::replicated_range(format).end == vq::entries(format) &&
                     format.placement.copies >= 8;
  return !small ? 1.0 : rows <= 8 ? 0.7 : 0.95;
}

}  // namespace

// Whole warpgroups, with as many rows as an instruction has.
void judge_plan(Judge& judge, const LinearWgmma& plan, const Linear& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  judge_warp_groups(judge, plan, gpu, "mma");
  judge_group_products(judge, plan, op);
  // If only some warps look up entries just before an MMA, ptxas serializes the MMAs.
  judge.require(plan.fetch_only_warps == 0 || plan.prefetch_steps == 1,
                "fetch_only_warps {} take prefetch_steps 1, without which the compiler serializes "
                "wgmma; set it so",
                plan.fetch_only_warps);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op);
  if (!judge.ok()) return;
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(vq::registers_of(config) <= most,
                "sums, operands, codes and x take {} registers per thread, of {}; lower threads, "
                "outputs_per_warp, rows_per_block, chunk_columns or code_words",
                vq::registers_of(config), most);
  judge_linear(judge, plan, op, gpu);
}

// Enough outputs per block to fill the GPU once, then splits.
LinearWgmma choose_plan(LinearWgmma plan, const Linear& op, const GpuSpec& gpu) {
  plan.rows_per_block = rows_of_block(planned_rows(op), kWarpgroupRows);
  for (const int threads : {512, 256, 128}) {
    plan.threads = threads;
    for (const int words : {4, 2, 1}) {
      plan.code_words = words;
      for (const int steps : {2, 1}) {
        if (fit_chunk(plan, op, gpu, steps)) return clustered(plan, op, gpu);
      }
    }
  }
  return {};
}

// From two rows on; with fewer lut and mma are faster.
void add_candidates(Candidates& to, LinearWgmma plan, const Linear& op, SpacePlacement allowed) {
  using P = LinearWgmma;
  constexpr int kFewestRows = 2;
  if (!to.gpu.warpgroup_products || planned_rows(op) < kFewestRows) return;
  const std::vector<Placement> placements = whole_placements(op.weights, allowed);
  const int rows = rows_of_block(planned_rows(op), kWarpgroupRows);
  for (const int part : {1, 2}) {
    plan.rows_per_block = rows / part;
    for_each_of(plan,
                {{&P::outputs_per_warp, {16, 32}},
                 {&P::threads, {128, 256, 512}},
                 {&P::code_words, {4, 2, 1}}},
                [&] {
                  for (const int idle : std::set{0, evening_fetch_only_warps(to, plan, op)}) {
                    plan.fetch_only_warps = idle;
                    add_cuts(to, plan, op, placements);
                  }
                });
    if (rows <= 32) break;  // codes are read again for each part
  }
}

void count_work(BlockWork& to, const LinearWgmma& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double chunks = block_chunks(c);
  const VqFormat& format = op.weights;
  const double runs = chunks * vq::chunk_columns(c) / vq::run_columns(c);
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double steps = warps * runs * vq::run_steps(c);  // of all warps
  const double entries = (warps - c.fetch_only_warps) * runs * vq::run_steps(c) * tiles * 2 *
                         vq::octet_codes(c.weights);
  const double before = to.passes;
  add_lookups(to, use.operands.front(), entries, conflicts);
  to.passes = before + share_of_passes(c.weights, c.rows_per_block) * (to.passes - before);
  to.arithmetic += entries * operand_instructions(format);
  to.turns += steps;
  // Twice the rate of m16n8k16; an instruction of few rows takes as long as one of 16.
  constexpr double kRate = 0.5;
  to.products += steps * tiles * 2 * std::max(c.rows_per_block, 16) / 8 * kRate;
  // A warpgroup reads the rows once per MMA.
  to.passes += steps / vq::kGroupWarps * tiles * 2 * vq::product_bytes(c) / 128;
  add_loads(to, c, chunks, runs * warps, 2);
  to.passes += scale_passes(c, runs * warps, 2);
  // Blocks that gather from global memory fill nothing and do not wait. Their lookups are hidden by
  // the other warps that look up, so idle warps cost time; fitted.
  constexpr double kIdleTake = 1.06;
  if (use.operands.front().format.placement != all_global()) {
    add_waits(to, c, chunks);
  } else if (c.fetch_only_warps > 0) {
    to.times *= kIdleTake;
  }
  // Blocks of larger clusters load each other's sums more slowly; fitted.
  const int cluster = vq::splits(c);
  to.peer_bytes = cluster > 4 ? 12 : cluster > 3 ? 40 : 100;
  to.chain += runs * tiles;
  to.registers = vq::registers_of(c);
}

}  // namespace vqgen

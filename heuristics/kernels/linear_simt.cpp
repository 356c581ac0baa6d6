// Plans of the simt GEMM: a few outputs per warp, x staged in chunks of whole codebook units.
#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

// The largest part of a codebook's `unit` columns that divides it, holds whole vectors of `v` and
// is at most `budget` long.
std::int64_t part_of_unit(std::int64_t unit, std::int64_t v, std::int64_t budget) {
  std::int64_t parts = (unit + budget - 1) / budget;
  while (unit % parts != 0 || unit / parts % v != 0) ++parts;  // ends at unit / v
  return unit / parts;
}

// Columns staged at once: whole codebooks, or the largest even part of one, with rows x columns
// fp32 within 16 KB.
int chunk_columns(const Linear& op, const LinearSimt& plan) {
  constexpr std::int64_t kStagedFloats = 4096;
  const std::int64_t budget = kStagedFloats / std::min(op.shape.rows, plan.rows_per_block);
  const std::int64_t unit = configured(plan, op).unit_columns;
  const std::int64_t v = op.weights.vector_size;
  if (unit >= op.shape.in_features || unit > budget) {
    if (unit < op.shape.in_features) return static_cast<int>(part_of_unit(unit, v, budget));
    const auto chunk =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget)));
    return static_cast<int>(std::min(chunk, op.shape.in_features));
  }
  return static_cast<int>(
      unit * static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget / unit))));
}

// Shared where it fits with a chunk of columns as long as the plan's, or a shorter one that the
// codebook's extent allows; else global.
void place_codebooks(LinearSimt& plan, const Linear& op, const GpuSpec& gpu) {
  constexpr int kShortestChunk = 64;  // below it the barriers outweigh the staging
  const int longest = plan.chunk_columns;
  plan.codebook = all_shared(op.weights.entries());
  for (; plan.chunk_columns >= kShortestChunk; plan.chunk_columns /= 2) {
    if (check(plan, op, gpu).ok) return;
  }
  plan.chunk_columns = longest;
  plan.codebook = all_global();
}

}  // namespace

void judge_plan(Judge& judge, const LinearSimt& plan, const Linear& op, const GpuSpec& gpu) {
  constexpr int kMostSums = 64;
  const int rows = vq::block_rows(configured(plan, op));
  judge.require(plan.outputs_per_warp * rows <= kMostSums,
                "{} outputs of {} rows a warp do not fit the registers; lower outputs_per_warp or "
                "rows_per_block",
                plan.outputs_per_warp, rows);
  judge_linear(judge, plan, op, gpu);
}

LinearSimt choose_plan(LinearSimt plan, const Linear& op, const GpuSpec& gpu) {
  fit_tile_rows(op, plan);
  plan.chunk_columns = chunk_columns(op, plan);
  place_codebooks(plan, op, gpu);
  return plan;
}

// The plan that choose() takes, and shorter and longer chunks: few, as this is the fallback. No
// copies, as instructions bound it.
void add_candidates(Candidates& to, LinearSimt plan, const Linear& op, SpacePlacement allowed) {
  const std::vector<Placement> placements = single_placements(op.weights, allowed);
  plan = choose_plan(plan, op, to.gpu);
  const int chunk = plan.chunk_columns;
  constexpr int kTarget = 32;  // warps an SM
  for (const int part : {1, 4}) {
    if (chunk / part < op.weights.vector_size) break;
    for (const int outputs : {1, 2, 4}) {
      plan.chunk_columns = chunk / part;
      plan.outputs_per_warp = outputs;
      const std::int64_t wanted = std::int64_t{kTarget} * to.gpu.sms / (plan.threads / 32);
      plan.splits = static_cast<int>(
          even_splits(vq::chunks(configured(plan, op)),
                      std::max<std::int64_t>(1, wanted / blocks_of_split(op, plan))));
      to.add_each(plan, placements);
    }
  }
}

void count_work(BlockWork& to, const LinearSimt& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double chunks = block_chunks(c);
  const VqFormat& format = op.weights;
  const double rows = vq::block_rows(c);
  const double subs =
      std::ceil(static_cast<double>(vq::chunk_columns(c)) / format.vector_size / 32);
  const double turns = chunks * c.outputs_per_warp * subs;
  const double vectors = warps * turns;
  add_lookups(to, use.operands.front(), vectors * format.num_codebooks, conflicts);
  to.arithmetic +=
      vectors * format.num_codebooks * (rebuild_instructions(format) + format.vector_size);
  to.arithmetic += vectors * group_instructions(format);
  to.arithmetic += vectors * rows * format.vector_size * 1.5;  // x, and multiply-adds
  to.passes += vectors * rows * format.vector_size;
  const double staged = chunks * vq::chunk_columns(c) * rows;
  to.passes += staged * 4 / 128;
  to.l2_bytes += staged * 2;
  to.fill += staged / c.threads;
  to.prologue += chunks + 1;
  to.chain += turns;
  to.registers = 40 + static_cast<int>(c.outputs_per_warp * rows);
}

}  // namespace vqgen

// Plans of the lut GEMM: some sub-vectors per lane whose codes share one word, or one whose codes
// may span two.
#include <set>

#include "heuristics/kernels/linear.h"
#include "heuristics/occupancy.h"

namespace vqgen {
namespace {

// Outputs per warp: powers of two, and counts that fill one, two and three waves of blocks evenly.
std::set<int> table_outputs(const Candidates& to, const LinearLut& plan, const Linear& op) {
  std::set<int> outputs{16, 32, 64, 128, 256, 512};
  constexpr int kThreadRegisters = 64;  // most per thread: what the largest block leaves
  const int blocks =
      occupancy(to.gpu, plan.threads, kThreadRegisters, call_shape(plan, op).shared_bytes()).blocks;
  const std::int64_t of_one = blocks_of_rows(op, plan) * vq::splits(configured(plan, op));
  for (const int waves : {1, 2, 3}) {
    const std::int64_t shares = std::int64_t{waves} * blocks * to.gpu.sms / of_one;
    if (shares == 0) continue;
    const std::int64_t warps = shares * (plan.threads / 32);
    const std::int64_t own = ceil_div(op.shape.out_features, warps);
    outputs.insert(static_cast<int>(std::min<std::int64_t>(4096, ceil_div(own, 4) * 4)));
  }
  return outputs;
}

}  // namespace

void judge_plan(Judge& judge, const LinearLut& plan, const Linear& op, const GpuSpec& gpu) {
  judge.require(op.weights.decoder == Decoder::table,
                "a table of inner products holds no {} points of decoder {}; use dataflow mma",
                op.weights.codes(), enum_name(op.weights.decoder));
  judge_groups(judge, op.weights, dataflow_name(plan));
  judge.require(plan.outputs_per_warp <= 32 || plan.outputs_per_warp % 4 == 0,
                "outputs_per_warp {} is above 32 and no multiple of 4", plan.outputs_per_warp);
  const int code_bits = op.weights.num_codebooks * op.weights.index_bits;
  judge.require(code_bits <= 32,
                "the codes of a sub-vector take {} bits, more than 32; use another dataflow",
                code_bits);
  if (!judge.ok()) return;
  const int sub_vectors = plan.sub_vectors_per_lane;
  judge.require(
      sub_vectors == 1 || (sub_vectors * code_bits <= 32 && 32 % (sub_vectors * code_bits) == 0),
      "the codes of {} sub-vectors take {} bits, no half, quarter or whole of a word; use "
      "sub_vectors_per_lane 1",
      sub_vectors, sub_vectors * code_bits);
  LinearLut bare = plan;
  bare.codebook = all_global();
  const std::int64_t bytes = call_shape(bare, op).shared_bytes();
  judge.require(bytes <= gpu.shared_bytes_per_block,
                "tables of {} inner products each take {} bytes of shared memory per block, {} has "
                "{}; use another dataflow, or leave it out for one to be chosen",
                op.weights.entries(), bytes, gpu.name, gpu.shared_bytes_per_block);
  judge_tile_rows(judge, configured(plan, op), "which a table serves");
  judge_linear(judge, plan, op, gpu);
}

LinearLut choose_plan(LinearLut plan, const Linear& op, const GpuSpec&) {
  fit_tile_rows(op, plan);
  plan.rows_per_block = 4;
  return plan;
}

// A block has one chunk, so all that is free is how many sub-vectors of x it has tables of and how
// many outputs share them.
void add_candidates(Candidates& to, LinearLut plan, const Linear& op, SpacePlacement allowed) {
  // Entries are read once, to make the tables.
  const std::vector<Placement> placements = single_placements(op.weights, allowed);
  using P = LinearLut;
  for_each_of(plan,
              {{&P::rows_per_block, few_rows(op)},
               {&P::sub_vectors_per_lane, {1, 2, 4}},
               {&P::threads, {128, 256, 512, 1024}}},
              [&] {
                // Tables across codebooks are made without tensor cores, which costs more than
                // wider loads save.
                const bool wide = plan.sub_vectors_per_lane > 1;
                if (wide && !vq::chunk_in_one_unit(configured(plan, op))) return;
                for (const int outputs : table_outputs(to, plan, op)) {
                  plan.outputs_per_warp = outputs;
                  to.add_each(plan, placements);
                }
              });
}

void count_work(BlockWork& to, const LinearLut& plan, const Linear& op, const PlanUse&,
                ConflictTable&) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double rows = vq::block_rows(c);
  const double entries = vq::entries(c.weights);
  const double tables = rows * vq::row_tables(c);
  // A warp makes 16 entries per turn: 4 MMAs, 8 stores of 2 wavefronts.
  to.products += tables * entries / 16 * 4;
  to.passes += tables * entries;
  to.arithmetic += tables * entries / 16 * 40;
  to.fill += tables * entries / 16 / warps;
  const double lookups = warps * c.outputs_per_warp * tables;
  to.lookups += lookups;
  to.passes += lookups;
  // A transposing sum: a shuffle, a select and an addition for each output but one of a group.
  to.arithmetic += warps * c.outputs_per_warp * rows * 4;
  // Fitted.
  if (rows > 1 || !op.weights.sums_are_bytes()) to.prologue += 2;
  // With few registers the compiler emits more instructions, and spills sums of several sub-vectors
  // and 16 outputs; both factors are fitted. All plans count as 64 registers: the fit includes that
  // blocks of 512 threads then seem to be resident in pairs.
  constexpr int kThreadsOfMany = 512;
  constexpr double kOfFew = 1.25, kOfSpills = 1.3;
  if (c.threads > kThreadsOfMany) {
    const int group = vq::table_group(c);
    const bool spills = group == 16 && c.outputs_per_warp > group && c.sub_vectors_per_lane > 1;
    to.arithmetic *= kOfFew * (spills ? kOfSpills : 1);
  }
  to.chain += static_cast<double>(c.outputs_per_warp) / vq::table_group(c);
  to.registers = 64;
}

}  // namespace vqgen

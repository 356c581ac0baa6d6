// Attention by lookup tables: whole score tables in shared memory, made of entries that each block
// reads only once.
#include "heuristics/kernels/attention.h"

namespace vqgen {

void judge_plan(Judge& judge, const AttentionLut& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge_narrow(judge, op.keys, "keys");
  judge_narrow(judge, op.values, "values");
  judge.require(!op.keys.is_scalar(),
                "keys: a score table holds inner products of entries, and codes of {} are numbers; "
                "use dataflow simt",
                short_name(op.keys));
  judge.require(op.keys.decoder == Decoder::table,
                "keys: a score table holds no 65536 points of the E8P lattice; use dataflow simt");
  judge.require(plan.table_bits == 16 || plan.table_bits == 32,
                "table_bits {} is neither 16 nor 32", plan.table_bits);
  constexpr int kMostHeads = 16;  // per lane: their sums stay in registers
  judge.require(plan.heads_per_block <= kMostHeads,
                "heads_per_block {} are more than the {} whose scores dataflow lut sums at once",
                plan.heads_per_block, kMostHeads);
  if (!judge.ok()) return;
  const std::int64_t bytes = vq::table_bytes(configured(plan, op));
  AttentionLut least = plan;
  least.heads_per_block = 1;
  least.table_bits = 16;
  const bool may_fit = vq::table_bytes(configured(least, op)) <= gpu.shared_bytes_per_block;
  judge.require(bytes <= gpu.shared_bytes_per_block,
                "score tables of {} entries and {} heads take {} bytes, {} has {} of shared memory "
                "per block; use another dataflow{}",
                std::int64_t{op.keys.num_codebooks} * op.keys.entries(), plan.heads_per_block,
                bytes, gpu.name, gpu.shared_bytes_per_block,
                may_fit ? ", fewer heads_per_block or table_bits 16" : "");
  if (!judge.ok()) return;
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

// Sets as many adjacent heads as score tables fit in fp32. f16, which may round scores visibly for
// an f16 result, is used only if one head does not fit and the result is bf16.
AttentionLut choose_plan(AttentionLut plan, const AttentionDecode& op, const GpuSpec& gpu) {
  plan.heads_per_block = even_heads(op);
  while (plan.heads_per_block > 1 && !place_codebooks(plan, op, gpu)) {
    plan.heads_per_block = static_cast<int>(ceil_div(plan.heads_per_block, 2));
  }
  if (!place_codebooks(plan, op, gpu)) {
    plan.table_bits = 16;
    fit_tile(plan, op, gpu);
    if (op.dtype == DType::f16) plan.table_bits = 32;  // refused, unless a user takes 16
  }
  // Each block makes its tables: no more blocks than are resident at once.
  const std::int64_t bytes = call_shape(plan, op).shared_bytes();
  const std::int64_t resident = std::clamp<std::int64_t>(gpu.shared_bytes_per_sm / bytes, 1, 2);
  plan.splits = choose_splits(op, plan, resident * gpu.sms);
  return plan;
}

// A block reads key entries once, from global memory, so that none of these plans has all entries
// in shared memory.
void add_candidates(Candidates& to, AttentionLut plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  if (allowed == SpacePlacement::shared) return;
  using P = AttentionLut;
  std::vector<PlacementPair> placements;
  for (const Placement& values : whole_placements(op.values, allowed)) {
    placements.emplace_back(all_global(), values);
  }
  plan = choose_plan(plan, op, to.gpu);
  for_each_of(plan,
              {{&P::threads, {128, 256, 512}},
               {&P::tile_tokens, {32, 64, 128, 256}},
               {&P::heads_per_block, halvings(plan.heads_per_block)}},
              [&] { add_splits(to, op, plan, plan.tile_tokens, placements); });
}

PlanUse use_of(const AttentionLut& plan, const AttentionDecode& op) {
  PlanUse use = use_of<AttentionLut>(plan, op);
  OperandUse& keys = use.operands.front();  // each entry once, when its table is made
  keys.lookups = static_cast<double>(use.blocks) * static_cast<double>(keys.units) *
                 op.keys.num_codebooks * op.keys.entries();
  return use;
}

void count_work(BlockWork& to, const AttentionLut& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

std::vector<std::string> explain_plan(const AttentionLut& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format(
      "score tables: {} bytes per block, {} bits per inner product, {} heads per lookup",
      vq::table_bytes(config), plan.table_bits, vq::table_heads(config))};
}

}  // namespace vqgen

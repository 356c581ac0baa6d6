// Attention by tables: score tables stand in shared memory whole, made of entries that each block
// reads but once.
#include "heuristics/kernels/attention.h"

namespace vqgen {

template <>
void Slice<AttentionTables>::judge(Judge& judge, const AttentionTables& plan,
                                   const AttentionDecode& op, const GpuSpec& gpu) {
  judge.require(op.keys.decoder == Decoder::table,
                "keys: a score table holds no 65536 points of the E8P lattice; use dataflow lanes");
  judge.require(plan.table_bits == 16 || plan.table_bits == 32,
                "table_bits {} is neither 16 nor 32", plan.table_bits);
  constexpr int kMostHeads = 16;  // whose sums a lane keeps in registers
  judge.require(plan.heads_per_block <= kMostHeads,
                "heads_per_block {} are more than the {} whose scores dataflow tables sums at once",
                plan.heads_per_block, kMostHeads);
  if (!judge.ok()) return;
  const std::int64_t bytes = vq::table_bytes(configured(plan, op));
  judge.require(bytes <= gpu.shared_bytes_per_block,
                "score tables of {} entries and {} heads take {} bytes, {} has {} of shared memory "
                "a block; use another dataflow, fewer heads_per_block or table_bits 16",
                std::int64_t{op.keys.residuals} * op.keys.entries(), plan.heads_per_block, bytes,
                gpu.name, gpu.shared_bytes_per_block);
  if (!judge.ok()) return;
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

// As many heads side by side as their score tables fit, in fp32. In f16, which rounds scores by
// more than a result in f16 may show, only where one head's do not fit and the result is bf16.
template <>
AttentionTables Slice<AttentionTables>::choose(const AttentionDecode& op, const GpuSpec& gpu) {
  AttentionTables plan;
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

// Key entries are read once a block, from global memory, so that none of these plans has all
// shared.
template <>
void Slice<AttentionTables>::add_candidates(Candidates& to, const AttentionDecode& op,
                                            SpacePlacement allowed) {
  if (allowed == SpacePlacement::shared) return;
  const std::vector<Placement> placements = whole_placements(op.values, allowed);
  const AttentionTables chosen = choose(op, to.gpu());
  AttentionTables plan = chosen;
  for (const int threads : {128, 256, 512}) {
    plan.threads = threads;
    for (const int tile : {32, 64, 128, 256}) {
      plan.tile_tokens = tile;
      for (int heads = chosen.heads_per_block; heads >= 1; heads /= 2) {
        plan.heads_per_block = heads;
        for (const int splits : splits_of(to, op, plan, tile)) {
          plan.splits = splits;
          for (const Placement& values : placements) {
            plan.value_codebook = values;
            to.add(plan);
          }
        }
      }
    }
  }
}

template <>
PlanUse Slice<AttentionTables>::use(const AttentionTables& plan, const AttentionDecode& op) {
  PlanUse use = attention_use(plan, op);
  OperandUse& keys = use.operands.front();  // each entry once, when its table is made
  keys.lookups = static_cast<double>(use.blocks) * static_cast<double>(keys.units) *
                 op.keys.residuals * op.keys.entries();
  return use;
}

template <>
void Slice<AttentionTables>::count(BlockWork& to, const AttentionTables& plan,
                                   const AttentionDecode& op, const PlanUse& use,
                                   ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

template <>
std::vector<std::string> Slice<AttentionTables>::explain(const AttentionTables& plan,
                                                         const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format("score tables: {} bytes a block, {} bits an inner product, {} heads a lookup",
                      vq::table_bytes(config), plan.table_bits, vq::table_heads(config))};
}

}  // namespace vqgen

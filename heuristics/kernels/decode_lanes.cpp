// Decoding by lanes: memory bounds it, by what it writes. So a block decodes so many tokens that
// the codebooks that it fetches are few beside them, as long as the GPU has blocks enough.
#include "heuristics/kernels/attention.h"

namespace vqgen {
namespace {

constexpr int kDecodersAnSm = 4;  // that a grid should have, where it can
constexpr int kUsuallyDecoded =
    64;                             // of a block: the codes of each thread's 4 stores are in flight
constexpr int kMostDecoded = 1024;  // of a block that has large codebooks to fetch
constexpr double kWorthFilling = 1;  // bytes fetched to shared memory for one that is written

// Bytes that a block fetches to hold a tensor's codebooks in shared memory, for one that it writes.
double fill_share(const vq::FormatConfig& format, const DecodeLanes& plan, int head_dim) {
  const auto fetched = static_cast<double>(vq::units_of(format, head_dim)) *
                       static_cast<double>(vq::unit_codebook_elements(format));
  return fetched / (static_cast<double>(plan.tokens_per_block) * head_dim);
}

}  // namespace

void judge_plan(Judge& judge, const DecodeLanes& plan, const KvDecode& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  judge.require(shape.launches[0].x <= 2147483647,
                "{} tokens by {} exceed the grid's first axis; raise tokens_per_block",
                op.shape.tokens, plan.tokens_per_block);
  judge_placement(judge, config.keys, vq::units_of(config.keys, op.shape.head_dim), "keys");
  judge_placement(judge, config.values, vq::units_of(config.values, op.shape.head_dim), "values");
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
}

DecodeLanes choose_plan(DecodeLanes plan, const KvDecode& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  const auto fill = [&] {
    return std::max(fill_share(config.keys, plan, op.shape.head_dim),
                    fill_share(config.values, plan, op.shape.head_dim));
  };
  plan.tokens_per_block = std::min(vq::rows_at_once(config), kUsuallyDecoded);
  while (plan.tokens_per_block < (fill() > kWorthFilling / 4 ? kMostDecoded : kUsuallyDecoded)) {
    DecodeLanes more = plan;
    more.tokens_per_block *= 2;
    if (call_shape(more, op).blocks() < std::int64_t{kDecodersAnSm} * gpu.sms) break;
    if (!check(more, op, gpu).ok) break;
    plan = more;
  }
  // A block is of keys or of values, so that neither takes room of the other.
  const auto place = [&](Placement& placement, const vq::FormatConfig& format) {
    if (fill_share(format, plan, op.shape.head_dim) > kWorthFilling) return;
    placement = all_shared(vq::entries(format));
    if (!check(plan, op, gpu).ok) placement = all_global();
  };
  place(plan.key_codebook, config.keys);
  place(plan.value_codebook, config.values);
  if (plan.key_codebook == all_global() && plan.value_codebook == all_global()) {
    plan.tokens_per_block = std::min(plan.tokens_per_block, kUsuallyDecoded);
  }
  return plan;
}

void add_candidates(Candidates& to, DecodeLanes plan, const KvDecode& op, SpacePlacement allowed) {
  using P = DecodeLanes;
  if (allowed == SpacePlacement::any) to.add(choose_plan(plan, op, to.gpu));
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  for_each_of(
      plan, {{&P::threads, {128, 256, 512}}, {&P::tokens_per_block, {16, 32, 64, 128, 256, 1024}}},
      [&] {
        for (const auto& [keys, values] : placements) {
          plan.key_codebook = keys;
          plan.value_codebook = values;
          to.add(plan);
        }
      });
}

PlanUse use_of(const DecodeLanes& plan, const KvDecode& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  const double of_each = static_cast<double>(shape.blocks()) / 2;
  return {
      .threads = plan.threads,
      .blocks = shape.blocks(),
      .shared_bytes = shape.shared_bytes(),
      .operands = {cache_use(Operand::keys, op, config.keys, op.shape.head_dim, 1, of_each),
                   cache_use(Operand::values, op, config.values, op.shape.head_dim, 1, of_each)}};
}

// No coefficients are fitted to it yet: the counts order candidates for the tuner's first looks, at
// the GPU's ceilings. Half of the blocks are of each tensor.
void count_work(BlockWork& to, const DecodeLanes& plan, const KvDecode& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const double turns =
      std::ceil(1.0 * plan.tokens_per_block / vq::rows_at_once(configured(plan, op)));
  const double warps = plan.threads / 32.0;
  for (const OperandUse& each : use.operands) {
    const vq::FormatConfig& format = each.format;
    const double lookups =
        turns * warps * vq::kDecodedChannels / format.vector_size * format.residuals / 2;
    add_lookups(to, each, lookups, conflicts);
    // A code is read, shifted and added; sums are rounded and stored.
    to.arithmetic += lookups * (4 + 2 * format.vector_size) + turns * warps * 8;
    // A step of a rotation is an addition of each channel, and between lanes a shuffle.
    if (format.hadamard) {
      to.arithmetic += turns * warps / 2 * vq::kDecodedChannels * 2 * std::log2(op.shape.head_dim);
    }
  }
  to.chain += 1 + turns;
  to.prologue += 2;
  to.registers = 40;
}

std::vector<std::string> explain_plan(const DecodeLanes& plan, const KvDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format("tokens_per_block {}: of keys or of values, {} at a time, {} lanes a token",
                      plan.tokens_per_block, vq::rows_at_once(config), vq::row_lanes(config))};
}

}  // namespace vqgen

// What a block of kv_append does. No coefficients are fitted to it yet: the counts order candidates
// for the tuner's first looks, at the GPU's ceilings.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/cost/work.h"

namespace vqgen {
namespace {

// A warp alone begins an instruction every other clock, at best; loads cost some 300 (ideal_us).
constexpr double kLoadsAnInstruction = 2.0 / 300;
constexpr int kLoadsAhead = 4;  // ops/append_rows.cuh

// Of one tensor's blocks, added to `to` by their share of all; the longest chain of either counts.
void count_tensor(BlockWork& to, const vq::KvAppendConfig& config, const vq::FormatConfig& format,
                  double share_of_blocks) {
  const double stages = format.residuals;
  const int share = vq::share_sub_vectors(config, format);
  const int run = vq::run_sub_vectors(config, format);
  const std::int64_t items = std::int64_t{config.tokens_per_block} * vq::ceil_div(share, run);
  const bool lattice = format.decoder == vq::Decoder::kE8p;
  const std::int64_t loads = ceil_div(vq::entries(format), 32 * config.warps_along_entries);
  // To make numbers of an entry, and to compare: a subtraction and a multiply-add a number, and
  // three to keep the nearest; of the lattice signs and the cheapest besides, for two shifts.
  const double compare =
      run * (lattice ? 2.0 * (7 * format.vector_size + 8) : 2.0 * format.vector_size + 3);
  const double a_load = format.vector_size + compare;
  const double warp_loads = static_cast<double>(loads * config.warps_along_entries);
  const double lookups = static_cast<double>(items) * stages * warp_loads;
  to.lookups += share_of_blocks * lookups;
  to.entries += share_of_blocks * lookups;
  to.arithmetic += share_of_blocks * lookups * a_load;
  to.lines += share_of_blocks * lookups * format.vector_size * 2 * 32 / 128;
  const std::int64_t units = ceil_div(share * format.vector_size, format.unit_elements);
  to.l2_bytes += share_of_blocks * static_cast<double>(units) *
                 static_cast<double>(vq::unit_codebook_elements(format)) * 2;
  const int groups = config.threads / 32 / config.warps_along_entries;
  const double turns = static_cast<double>(ceil_div(items, groups)) * stages;
  to.chain = std::max(to.chain, turns * static_cast<double>(loads) *
                                    (1.0 / kLoadsAhead + a_load * kLoadsAnInstruction));
  constexpr int kOthers = 24;  // registers
  to.registers = std::max(to.registers, kOthers + (run + kLoadsAhead) * format.vector_size);
  // Positions, the row, and of each stage the entry that was taken.
  to.prologue = std::max(to.prologue, 2 + stages);
}

}  // namespace

BlockWork block_work(const KvAppend& op, const KvAppendPlan& plan) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  const int key_shares = vq::shares(config, config.keys);
  const int value_shares = vq::shares(config, config.values);
  const double all = key_shares + value_shares;
  BlockWork work;
  work.threads = plan.threads;
  work.shared_bytes = vq::block_shared_bytes(config);
  work.blocks = std::int64_t{op.shape.batch} * op.shape.kv_heads * vq::token_blocks(config) *
                (key_shares + value_shares);
  count_tensor(work, config, config.keys, key_shares / all);
  count_tensor(work, config, config.values, value_shares / all);
  const double rows = 1.0 * op.shape.batch * op.shape.kv_heads * op.shape.new_tokens;
  const auto codes = [&](const VqFormat& format) { return format.bits_per_element() / 8; };
  work.memory_bytes = rows * op.shape.head_dim * (4 + codes(op.keys) + codes(op.values));
  return work;
}

}  // namespace vqgen

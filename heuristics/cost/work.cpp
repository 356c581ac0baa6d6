#include "heuristics/cost/work.h"

#include <algorithm>
#include <cmath>

#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/attention.h"
#include "heuristics/kernels/linear.h"
#include "heuristics/occupancy.h"

namespace vqgen {
namespace {

constexpr double kPassBytes = 128;  // per clock of shared memory, and per cache line

BlockWork begun(const PlanUse& use) {
  return {.threads = use.threads, .shared_bytes = use.shared_bytes, .blocks = use.blocks};
}

// begun() with the codes and codebooks of all operands.
BlockWork begun_with_operands(const PlanUse& use) {
  BlockWork work = begun(use);
  for (const OperandUse& each : use.operands) {
    work.memory_bytes += each.code_bytes + static_cast<double>(each.codebook_bytes());
    work.l2_bytes += each.code_bytes * each.code_reads / static_cast<double>(use.blocks);
    add_fill(work, each);
  }
  return work;
}

template <class P>
BlockWork begun(const P& plan, const AttentionDecode& op, const PlanUse& use) {
  BlockWork work = begun_with_operands(use);
  if (plan.splits == 1) return work;
  const auto config = configured(plan, op);
  const std::int64_t slots = vq::partial_slots(config, std::int64_t{op.shape.batch});
  const double sums = static_cast<double>(slots) * op.shape.query_heads;
  work.partial_bytes = 2 * 4 * sums * (op.shape.value_dim() + 2);
  const auto groups = ceil_div(plan.splits, vq::merged_together(config));
  if (plan.combine == Combine::last_block) {
    const int channels = plan.heads_per_block * op.shape.value_dim();
    work.merge_turns = 1 + static_cast<double>(ceil_div(channels, plan.threads) * groups);
  } else {
    // Fitted constants of merging; teams exchange their parts.
    constexpr double kLaunch = 0.7;
    constexpr double kExchange = 3;
    const std::int64_t teams = vq::merging_teams(config);
    work.merge_launches = kLaunch;
    work.merge_turns = static_cast<double>(ceil_div(groups, teams)) + (teams > 1 ? kExchange : 0);
  }
  return work;
}

template <class P>
BlockWork begun(const P& plan, const Linear& op, const PlanUse& use) {
  BlockWork work = begun_with_operands(use);
  work.first_bytes = 7;
  work.fills = use.operands.front().fills / static_cast<double>(use.blocks);
  // A block of few warps waits longer for lookups in global memory than this count says; fitted.
  constexpr int kFewThreads = 128;
  constexpr double kFewTake = 1.1;
  if (plan.threads <= kFewThreads && use.operands.front().format.placement == all_global()) {
    work.times = kFewTake;
  }
  const auto config = configured(plan, op);
  const int splits = vq::splits(config);
  if (splits == 1 && !vq::stores_partials(config)) return work;
  if (vq::in_clusters(config)) {
    work.cluster = splits;
    work.exchanged_bytes = 4.0 * vq::outputs_per_block(config) * vq::block_rows(config);
    return work;
  }
  const double sums =
      static_cast<double>(op.shape.call_rows()) * static_cast<double>(op.shape.out_features);
  work.partial_bytes = 2 * 4 * sums * splits;
  if (plan.combine == Combine::last_block) {
    // A block's stores, its addition to the counter, and the broadcast of the result to its
    // threads.
    constexpr int kToTheLast = 3;
    const int results = vq::outputs_per_block(config) * vq::block_rows(config);
    work.merge_turns =
        kToTheLast + static_cast<double>(ceil_div(results, plan.threads) * ceil_div(splits, 16));
  } else {
    work.merge_launches = 1;
    work.merge_turns = splits / 8.0;
  }
  return work;
}

template <class P>
BlockWork begun(const P&, const KvAppend& op, const PlanUse& use) {
  BlockWork work = begun(use);
  const double rows = 1.0 * op.shape.batch * op.shape.kv_heads * vq::visited_tokens(facts(op));
  const auto codes = [&](const VqFormat& format) { return format.bits_per_element() / 8; };
  work.memory_bytes = rows * (op.shape.head_dim * (2 + codes(op.keys)) +
                              op.shape.value_dim() * (2 + codes(op.values)));
  return work;
}

// Keys and values in 16 bits are written.
template <class P>
BlockWork begun(const P&, const KvDequantize& op, const PlanUse& use) {
  BlockWork work = begun_with_operands(use);
  work.memory_bytes += dense_bytes(op);
  return work;
}

// 16-bit rows are written.
template <class P>
BlockWork begun(const P&, const WeightDequantize& op, const PlanUse& use) {
  BlockWork work = begun_with_operands(use);
  work.memory_bytes += 2 * op.elements();
  return work;
}

template <class P>
BlockWork begun(const P&, const AttentionMerge& op, const PlanUse& use) {
  BlockWork work = begun(use);
  work.memory_bytes = op.bytes();
  return work;
}

template <class P>
BlockWork begun(const P&, const ScalarMatrix& op, const PlanUse& use) {
  BlockWork work = begun(use);
  work.memory_bytes = op.bytes();
  return work;
}

}  // namespace

ConflictTable::Levels ConflictTable::of(const OperandUse& use) {
  const Placement& p = use.format.placement;
  const Key key{use.operand, use.lane_units, use.in_a_row, use.entry_bytes(),
                p.registers, p.replicated,   p.copies,     p.shared};
  const auto [known, fresh] = known_.try_emplace(key);
  Levels& levels = known->second;
  if (!fresh) return levels;
  auto accesses = accesses_.find(use.operand);
  if (accesses == accesses_.end()) {
    accesses = accesses_.emplace(use.operand, accesses_of(profiles_, use)).first;
  }
  constexpr int kPhases = 512;  // plans are compared: the same draws for all
  levels.passes = conflict_factor(use, accesses->second, kPhases);
  const vq::EntryRange global = vq::global_range(use.format);
  levels.global = accesses->second.share(global.begin, global.end);
  const double book = static_cast<double>(use.lane_units) *
                      static_cast<double>(vq::unit_codebook_elements(use.format)) * 2;
  // Lines that so many lanes touch of a table of so many, each line as likely.
  const double all = book / use.format.num_codebooks / kPassBytes;
  const auto touched = [all](double lanes) {
    return all < 1 ? 1 : all * (1 - std::pow(1 - 1 / all, lanes));
  };
  levels.lines = touched(32);
  levels.first_lines = touched(32 * use.in_a_row) / use.in_a_row;
  return levels;
}

void add_fill(BlockWork& to, const OperandUse& use) {
  const double fills = use.fills / static_cast<double>(to.blocks);
  const double places = use.places();
  to.fill += fills * places / to.threads;
  to.passes += fills * places * use.entry_bytes() / kPassBytes;
  to.l2_bytes +=
      fills * static_cast<double>(use.stored_row_bytes()) * vq::shared_range(use.format).end;
}

void add_lookups(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts) {
  to.lookups += a_block;
  add_levels(to, use, a_block, conflicts);
}

void add_levels(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts) {
  const ConflictTable::Levels levels = conflicts.of(use);
  const double phases = 32.0 / phase_lanes(use.entry_bytes());
  to.passes += a_block * phases * levels.passes;
  to.lines += a_block * levels.global * levels.lines;
  to.first_lines += a_block * levels.global * levels.first_lines;
  to.global_lookups += a_block * levels.global;
  if (levels.global > 0) {
    to.looked_up_bytes += a_block * levels.global * 32 * use.format.vector_size * 2;
    to.gathered_bytes += static_cast<double>(use.units * use.format.num_codebooks) *
                         vq::entries(use.format) * use.format.vector_size * 2;
  }
}

CostParts ideal_us(const BlockWork& work, const GpuSpec& gpu) {
  const double clock = gpu.sm_clock_mhz;  // cycles a us
  const int sms = cluster_sms(gpu, work.cluster);
  const double even = static_cast<double>(work.blocks) / sms;
  const double most_blocks = std::ceil(even);
  // The compiler keeps to the registers that let a block run, or as many blocks as requested.
  const int most = std::min(255, gpu.registers_per_sm / (work.threads * work.resident) / 8 * 8);
  const int registers = std::min(work.registers, most);
  const int held = std::max(1, occupancy(gpu, work.threads, registers, work.shared_bytes).blocks);
  const double waves = std::ceil(most_blocks / held);
  // Blocks of the busiest, of which others may have one less.
  const double spared = waves > 1 ? work.spared_of_several : work.spared;
  const double on_one = most_blocks - spared * (most_blocks - even);
  constexpr double kSchedulers = 4;
  constexpr double kProductCycles = 2;  // m16n8k16 at 1024 multiply-adds a clock
  CostParts us;
  us[CostPart::launch] = 1;
  // Partial sums are read once all are there, from DRAM if they exceed L2. They take twice the time
  // of their bytes; fitted.
  constexpr double kReads = 2;
  const double partial_reads = work.partial_bytes / 2;
  const double l2_rate = gpu.sms * kL2Bytes * clock;  // bytes a us
  const bool in_l2 = partial_reads <= static_cast<double>(gpu.l2_bytes) / 2;
  us[CostPart::combine] = work.merge_launches + work.merge_turns * kLatencyCycles / clock +
                          kReads * partial_reads / (in_l2 ? l2_rate : 1e3 * gpu.memory_gbps);
  if (work.cluster > 1) {
    us[CostPart::cluster] =
        work.cluster_us + on_one * work.exchanged_bytes / work.peer_bytes / clock;
  }
  const bool dependent = has_dependent_launches(gpu.arch);
  const double start = dependent ? work.start : 0;
  us[CostPart::prologue] = (waves * work.prologue + start) * kLatencyCycles / clock;
  const double hidden_fill = dependent ? work.hidden_fill : 0;
  us[CostPart::fill] = (waves * work.fill - hidden_fill) * kLatencyCycles / clock;
  // Lookups in global memory overlap: a warp waits for a tenth of their latency; fitted.
  constexpr double kWaited = 0.1;
  const double warps = work.threads / 32.0;
  const double waits = work.chain + kWaited * work.global_lookups / warps;
  us[CostPart::chain] = waves * waits * kLatencyCycles / clock;
  us[CostPart::memory] = work.memory_bytes * 1e-3 / gpu.memory_gbps;
  const double first = dependent ? std::min(1.0, on_one) : 0;  // block, which hides some
  us[CostPart::l2] = (on_one * work.l2_bytes - first * work.hidden_l2_bytes) / kL2Bytes / clock +
                     work.partial_bytes / 2 / l2_rate;
  // A spilled register goes through L1, which shares its wavefronts with shared memory.
  double spills = 2.0 * std::max(0, work.registers - most) * work.turns;
  // The more there are, the more often each, and warps wait for them. The estimate of registers is
  // not sharp, so those near the limit count too (fitted to attention).
  constexpr int kMargin = 4;
  constexpr double kTurnsOfOne = 0.06;
  const double excess = std::max(0, work.registers + kMargin - most);
  spills += 1.5 * excess * excess / 32 * warps * work.warp_turns;
  us[CostPart::chain] += waves * work.warp_turns * excess * kTurnsOfOne * kLatencyCycles / clock;
  us[CostPart::shared] = (on_one * (work.passes + spills) - first * work.hidden_passes) / clock;
  // A line from L2 takes longer than one from L1; fitted.
  constexpr double kMissed = 1.75;
  // Blocks side by side gather from as many codebooks as they are of.
  const std::int64_t beside = std::min<std::int64_t>(held, static_cast<std::int64_t>(most_blocks));
  const std::int64_t books = std::min(work.books, ceil_div(beside, work.gathering));
  const double gathered = work.gathered_bytes * static_cast<double>(books);
  // Shared memory of resident blocks is taken from L1.
  const double kept = static_cast<double>(beside) * static_cast<double>(work.shared_bytes);
  const double cache = std::max(0.0, gpu.shared_bytes_per_sm - kept);
  const double missed = std::max(0.0, 1 - cache / std::max(1.0, gathered));
  us[CostPart::lines] = on_one * (work.lines + kMissed * missed * work.first_lines) / clock;
  // The part of them that L1 holds is loaded once before lookups can hit.
  if (gathered > 0 && work.first_bytes > 0) {
    const double touched = gathered * (1 - std::exp(-on_one * work.looked_up_bytes / gathered));
    us[CostPart::fill] += (1 - missed) * touched / work.first_bytes / clock;
  }
  us[CostPart::lookups] = on_one * work.lookups / kSchedulers / clock;
  us[CostPart::arithmetic] = on_one * work.arithmetic / kSchedulers / clock;
  us[CostPart::tensor] = on_one * work.products * kProductCycles / clock;
  // A refill of a block overlaps with the work of the blocks beside it.
  const double busy =
      *std::max_element(us.of.begin() + static_cast<int>(CostPart::memory), us.of.end());
  const double others = busy * static_cast<double>(beside - 1) / static_cast<double>(beside);
  const double again = waves * work.fill * (1 - 1 / work.fills) * kLatencyCycles / clock;
  us[CostPart::fill] -= std::min({again, others, us[CostPart::fill]});
  const double times = work.times * (most_blocks > 1 ? work.times_of_several : 1);
  for (double& each : us.of) each *= times;
  return us;
}

BlockWork block_work(const Plan& plan, const Problem& problem, ConflictTable& conflicts) {
  return visit_plan(plan, problem, [&](const auto& each, const auto& op) {
    const PlanUse use = use_of(each, op);
    BlockWork work = begun(each, op, use);
    count_work(work, each, op, use, conflicts);
    return work;
  });
}

}  // namespace vqgen

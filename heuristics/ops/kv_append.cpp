#include "heuristics/ops/kv_append.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"

namespace vqgen {
namespace {

constexpr int kBlocksAnSm = 2;  // that a grid should have, where it can
constexpr int kMostTokens = 8;  // of a block: enough to read a codebook for
constexpr int kWarpsAnSm = 16;  // that hide the latency of loads of entries
constexpr int kMostThreads = 512;
constexpr int kEntriesALane = 4;  // at least: as many loads are begun before the first is used

std::int64_t blocks(const KvAppend& op, const KvAppendPlan& plan) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  return std::int64_t{op.shape.batch} * op.shape.kv_heads * vq::token_blocks(config) *
         (vq::shares(config, config.keys) + vq::shares(config, config.values));
}

// Runs of sub-vectors that the warps of a block share, of the tensor that has fewer.
int runs_of_block(const KvAppend& op, const KvAppendPlan& plan) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  const auto runs = [&](const vq::FormatConfig& format) {
    return vq::ceil_div(vq::share_sub_vectors(config, format), vq::run_sub_vectors(config, format));
  };
  return plan.tokens_per_block * std::min(runs(config.keys), runs(config.values));
}

// Warps that have no run of their own help with the entries of another's.
KvAppendPlan with_threads(const KvAppend& op, KvAppendPlan plan, int threads) {
  plan.threads = threads;
  const int runs = runs_of_block(op, plan);
  const int warps = threads / 32;
  plan.warps_along_entries = 1;
  while (plan.warps_along_entries < warps && warps / plan.warps_along_entries > runs) {
    plan.warps_along_entries *= 2;
  }
  return plan;
}

}  // namespace

KvAppendPlan choose_kv_append(const KvAppend& op, const GpuSpec& gpu) {
  const std::int64_t wanted = std::int64_t{kBlocksAnSm} * gpu.sms;
  KvAppendPlan plan;
  while (plan.tokens_per_block * 2 <= std::min(op.shape.new_tokens, kMostTokens)) {
    KvAppendPlan more = plan;
    more.tokens_per_block *= 2;
    if (blocks(op, more) < wanted) break;
    plan = more;
  }
  KvAppendPlan split = plan;
  for (split.splits = 2; split.splits <= 128 && blocks(op, plan) < wanted; split.splits *= 2) {
    if (blocks(op, split) > blocks(op, plan)) plan = split;
  }
  plan = with_threads(op, plan, plan.threads);
  const int entries = std::max(op.keys.entries(), op.values.entries());
  while (plan.threads < kMostThreads &&
         blocks(op, plan) * plan.threads / 32 < std::int64_t{kWarpsAnSm} * gpu.sms) {
    const KvAppendPlan more = with_threads(op, plan, plan.threads * 2);
    if (entries < 32 * more.warps_along_entries * kEntriesALane) break;
    plan = more;
  }
  return plan;
}

}  // namespace vqgen

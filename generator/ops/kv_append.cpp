#include <fmt/format.h>

#include <vq/args/kv_append.h>

#include "core/kernel_config.h"
#include "generator/ops/ops.h"
#include "generator/text.h"

namespace vqgen {
namespace {

std::string plan_text(const vq::KvAppendConfig& c) {
  ConfigPrinter printer("vq::KvAppendConfig");
  printer.add("element", c.element)
      .add("head_dim", std::int64_t{c.head_dim})
      .add("kv_heads", std::int64_t{c.kv_heads})
      .add("new_tokens", std::int64_t{c.new_tokens})
      .add("max_window", std::int64_t{c.max_window})
      .add("max_sinks", std::int64_t{c.max_sinks})
      .add("threads", std::int64_t{c.threads})
      .add("splits", std::int64_t{c.splits})
      .add("tokens_per_block", std::int64_t{c.tokens_per_block})
      .add("warps_along_entries", std::int64_t{c.warps_along_entries})
      .add("sub_vectors_per_warp", std::int64_t{c.sub_vectors_per_warp})
      .add("keys", c.keys)
      .add("values", c.values);
  return std::move(printer).finish();
}

// "d4b8_d8b12_f16_h128n1_lanes_s2_t1_w4e2_v4": formats of keys and values, element type, head_dim
// and new tokens, dataflow, splits, tokens a block, warps and those along the entries, sub-vectors.
std::string suffix(const KvAppend& op, const KvAppendPlan& plan, int warps_along_entries) {
  return fmt::format("{}_{}_{}_h{}n{}_{}_s{}_t{}_w{}e{}_v{}", short_name(op.keys),
                     short_name(op.values), enum_name(op.dtype), op.shape.head_dim,
                     op.shape.new_tokens, enum_name(plan.dataflow), plan.splits,
                     plan.tokens_per_block, plan.threads / 32, warps_along_entries,
                     plan.sub_vectors_per_warp);
}

}  // namespace

OpText op_text(const KvAppend& op, const KvAppendPlan& plan) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  KernelEntry entry;
  entry.name = fmt::format("{}_{}", op.kOp, suffix(op, plan, config.warps_along_entries));
  const int shares = vq::shares(config, config.keys) + vq::shares(config, config.values);
  entry.grid = {static_cast<unsigned>(vq::token_blocks(config) * shares),
                static_cast<unsigned>(op.shape.kv_heads), static_cast<unsigned>(op.shape.batch)};
  entry.threads = static_cast<unsigned>(plan.threads);
  entry.shared_bytes = vq::block_shared_bytes(config);
  const std::string function = fmt::format("kv_append_{}", enum_name(plan.dataflow));
  OpText text;
  text.templates = {fmt::format("vq/ops/{}.cuh", function)};
  text.plan = plan_text(config);
  text.kernels = kernel_entry(entry, "KvAppendArgs", function);
  text.entries = {entry};
  text.args_bytes = sizeof(vq::KvAppendArgs);
  return text;
}

}  // namespace vqgen

#include <fmt/format.h>

#include <vq/args/attention_decode.h>

#include "core/kernel_config.h"
#include "generator/ops/ops.h"
#include "generator/text.h"

namespace vqgen {
namespace {

// "attention_decode_d4b8_d8b12_f16_h128g4_lanes_s8_t64_w4_ks_vr8s": formats of keys and values,
// element type, head_dim and group, dataflow, splits, tile, warps, placements.
std::string suffix(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  return fmt::format("{}_{}_{}_h{}g{}_{}_s{}_t{}_w{}_k{}_v{}", short_name(op.keys),
                     short_name(op.values), enum_name(op.dtype), op.shape.head_dim, op.group(),
                     enum_name(plan.dataflow), plan.splits, plan.tile_tokens, plan.threads / 32,
                     short_name(plan.key_codebook, op.keys.entries()),
                     short_name(plan.value_codebook, op.values.entries()));
}

std::string plan_text(const vq::AttentionDecodeConfig& c) {
  ConfigPrinter printer("vq::AttentionDecodeConfig");
  printer.add("element", c.element)
      .add("dataflow", c.dataflow)
      .add("head_dim", std::int64_t{c.head_dim})
      .add("query_heads", std::int64_t{c.query_heads})
      .add("kv_heads", std::int64_t{c.kv_heads})
      .add("max_window", std::int64_t{c.max_window})
      .add("max_sinks", std::int64_t{c.max_sinks})
      .add("threads", std::int64_t{c.threads})
      .add("tile_tokens", std::int64_t{c.tile_tokens})
      .add("splits", std::int64_t{c.splits})
      .add("heads_per_block", std::int64_t{c.heads_per_block})
      .add("lanes_per_token", std::int64_t{c.lanes_per_token})
      .add("stages", std::int64_t{c.stages})
      .add("code_words", std::int64_t{c.code_words})
      .add("keys", c.keys)
      .add("values", c.values);
  return std::move(printer).finish();
}

}  // namespace

OpText op_text(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  const auto batch = static_cast<unsigned>(op.shape.batch);
  OpText text;
  const std::string function = fmt::format("attention_{}", enum_name(plan.dataflow));
  text.templates = {fmt::format("vq/ops/{}.cuh", function)};
  text.plan = plan_text(config);
  text.args_bytes = sizeof(vq::AttentionDecodeArgs);
  KernelEntry decode;
  decode.name = "attention_decode_" + suffix(op, plan);
  decode.grid = {static_cast<unsigned>(plan.splits),
                 static_cast<unsigned>(op.shape.kv_heads * vq::head_blocks(config)), batch};
  decode.threads = static_cast<unsigned>(plan.threads);
  decode.shared_bytes = vq::block_shared_bytes(config);
  text.kernels = kernel_entry(decode, "AttentionDecodeArgs", function);
  text.entries.push_back(decode);
  if (plan.splits > 1) {
    KernelEntry combine;
    combine.name = "attention_combine_" + suffix(op, plan);
    combine.grid = {static_cast<unsigned>(op.shape.query_heads), batch, 1};
    combine.threads = static_cast<unsigned>(op.shape.head_dim);
    text.templates.emplace_back("vq/ops/attention_combine.cuh");
    text.kernels += kernel_entry(combine, "AttentionDecodeArgs", "attention_combine");
    text.entries.push_back(combine);
  }
  return text;
}

}  // namespace vqgen

#include <fmt/format.h>

#include <vq/args/attention_decode.h>

#include "core/kernel_config.h"
#include "generator/ops/ops.h"
#include "generator/text.h"

namespace vqgen {
namespace {

// "attention_decode_d4b8_d8b12_f16_h128g4_lanes_s8_t64_w4_ks_vr8s": formats of keys and values,
// element type, head_dim and group, dataflow, splits ("s8l": merged by the last block), tile,
// warps, placements.
std::string suffix(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  return fmt::format("{}_{}_{}_h{}g{}_{}_s{}{}_t{}_w{}_k{}_v{}", short_name(op.keys),
                     short_name(op.values), enum_name(op.dtype), op.shape.head_dim, op.group(),
                     enum_name(plan.dataflow), plan.splits,
                     plan.combine == Combine::last_block ? "l" : "", plan.tile_tokens,
                     plan.threads / 32, short_name(plan.key_codebook, op.keys.entries()),
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
      .add("combine", c.combine)
      .add("heads_per_block", std::int64_t{c.heads_per_block})
      .add("lanes_per_token", std::int64_t{c.lanes_per_token})
      .add("stages", std::int64_t{c.stages})
      .add("code_words", std::int64_t{c.code_words})
      .add("table_bits", std::int64_t{c.table_bits})
      .add("key_channel_splits", std::int64_t{c.key_channel_splits})
      .add("value_channel_splits", std::int64_t{c.value_channel_splits})
      .add("keys", c.keys)
      .add("values", c.values);
  return std::move(printer).finish();
}

// What a kernel of the op runs, as its entry is named and called.
struct Part {
  const char* name;
  std::string function;
  vq::AttentionPart part;
  int shares;  // blocks that share the channels
};

std::vector<Part> parts(const AttentionDecodePlan& plan, const vq::AttentionDecodeConfig& config) {
  if (plan.dataflow != AttentionDataflow::channels) {
    return {{"attention_decode", fmt::format("attention_{}", enum_name(plan.dataflow)),
             vq::AttentionPart::kWhole, 1}};
  }
  return {{"attention_scores", "attention_channel_scores", vq::AttentionPart::kScores,
           config.key_channel_splits},
          {"attention_values", "attention_channel_values", vq::AttentionPart::kValues,
           config.value_channel_splits}};
}

}  // namespace

OpText op_text(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  const auto batch = static_cast<unsigned>(op.shape.batch);
  OpText text;
  text.templates = {fmt::format("vq/ops/attention_{}.cuh", enum_name(plan.dataflow))};
  text.plan = plan_text(config);
  text.args_bytes = sizeof(vq::AttentionDecodeArgs);
  const auto add = [&](const KernelEntry& entry, const std::string& function, bool ahead) {
    text.kernels += kernel_entry(entry, "AttentionDecodeArgs", function, ahead);
    text.entries.push_back(entry);
  };
  for (const Part& part : parts(plan, config)) {
    KernelEntry entry;
    entry.name = fmt::format("{}_{}", part.name, suffix(op, plan));
    entry.grid = {static_cast<unsigned>(plan.splits),
                  static_cast<unsigned>(op.shape.kv_heads * vq::head_blocks(config) * part.shares),
                  batch};
    entry.threads = static_cast<unsigned>(plan.threads);
    entry.shared_bytes = vq::block_shared_bytes(config, part.part);
    add(entry, part.function, plan.dataflow == AttentionDataflow::fragments);
  }
  if (plan.splits > 1 && plan.combine == Combine::kernel) {
    KernelEntry combine;
    combine.name = "attention_combine_" + suffix(op, plan);
    combine.grid = {static_cast<unsigned>(op.shape.query_heads), batch, 1};
    combine.threads = static_cast<unsigned>(op.shape.head_dim);
    text.templates.emplace_back("vq/ops/attention_combine.cuh");
    add(combine, "attention_combine", false);
  }
  return text;
}

}  // namespace vqgen

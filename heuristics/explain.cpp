#include "heuristics/explain.h"

#include <fmt/format.h>

#include "core/kernel_config.h"

namespace vqgen {
namespace {

// "key codebooks: entries 8 in registers, 248 in shared; ..." and the bytes that they take a block.
std::string codebook_line(const char* operand, const vq::FormatConfig& format, std::int64_t units) {
  std::string levels;
  const auto add = [&](vq::EntryRange range, const std::string& where) {
    if (range.begin == range.end) return;
    levels += fmt::format("{}{} {}", levels.empty() ? "" : ", ", range.end - range.begin, where);
  };
  add(vq::register_range(format), "in registers");
  add(vq::replicated_range(format), fmt::format("in shared x{}", format.placement.copies));
  add(vq::shared_range(format), "in shared");
  add(vq::global_range(format), "in global");
  return fmt::format("{} codebooks: entries {}; {} shared bytes a block for {} of codebooks",
                     operand, levels,
                     units * (vq::replicated_bytes(format) + vq::shared_bytes(format)),
                     units * vq::unit_codebook_elements(format) * 2);
}

std::string block_line(std::int64_t bytes, const GpuSpec& gpu) {
  return fmt::format("shared memory: {} of {} bytes a block", bytes, gpu.shared_bytes_per_block);
}

// Of plans that have splits.
template <class OpPlan>
void add_combine(std::vector<std::string>& all, const OpPlan& plan, std::int64_t counters) {
  if (plan.combine == Combine::kernel) return;
  all.push_back(
      fmt::format("combine last_block: the last of {} blocks merges, for each of {} "
                  "results; no second kernel",
                  plan.splits, counters));
}

std::vector<std::string> lines(const AttentionDecode& op, const AttentionDecodePlan& plan,
                               const GpuSpec& gpu) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  const std::int64_t blocks =
      std::int64_t{op.shape.kv_heads} * vq::head_blocks(config) * op.shape.batch;
  std::vector<std::string> all = {
      fmt::format("splits {}: {} (head, sequence) blocks a split for {} SMs, tiles of {} tokens",
                  plan.splits, blocks, gpu.sms, plan.tile_tokens),
      fmt::format("heads_per_block {}: a code is decoded once for {} of the group's {} query heads",
                  plan.heads_per_block, plan.heads_per_block, op.group()),
      codebook_line("key", config.keys, vq::units_of(config.keys, vq::key_channels(config))),
      codebook_line("value", config.values,
                    vq::units_of(config.values, vq::value_channels(config))),
      block_line(vq::block_shared_bytes(config), gpu),
  };
  if (plan.dataflow == AttentionDataflow::tables) {
    all.push_back(
        fmt::format("score tables: {} bytes a block, {} bits an inner product, {} heads "
                    "a lookup",
                    vq::table_bytes(config), plan.table_bits, vq::table_heads(config)));
  }
  if (plan.dataflow == AttentionDataflow::channels) {
    all.push_back(
        fmt::format("channel splits: {} channels of keys and {} of values a block; {} "
                    "bytes of partial scores",
                    vq::key_channels(config), vq::value_channels(config), score_bytes(op, plan)));
  }
  add_combine(all, plan, vq::counters(config, op.shape.batch));
  return all;
}

std::vector<std::string> lines(const Linear& op, const LinearPlan& plan, const GpuSpec& gpu) {
  const vq::LinearConfig config = kernel_config(op, plan);
  std::vector<std::string> all = {
      fmt::format("dataflow {}: {} outputs a block, {} splits of the columns",
                  enum_name(plan.dataflow), vq::outputs_per_block(config), plan.splits),
      fmt::format("chunk_columns {}: {} rows of x staged, {} codebook units a chunk",
                  plan.chunk_columns, op.shape.rows, vq::units_per_chunk(config)),
      codebook_line("weight", config.weights, vq::units_per_chunk(config)),
      block_line(vq::shared_layout(config).total, gpu),
  };
  if (plan.dataflow == LinearDataflow::slices) {
    all.push_back(fmt::format(
        "slices: {} of the {} elements of an entry a block, {} bytes of {} entries; {} blocks read "
        "the codes of an output, and their sums are added as splits",
        vq::slice_elements(config), op.weights.vector_size, vq::slice_bytes(config),
        op.weights.entries(), plan.splits / vq::chunks(config)));
  }
  add_combine(all, plan, vq::counters(config));
  return all;
}

std::string share_line(const char* operand, const vq::KvAppendConfig& config,
                       const vq::FormatConfig& format) {
  return fmt::format(
      "{}: {} blocks a row, of {} of its {} sub-vectors; {} are compared with an entry "
      "once it is loaded",
      operand, vq::shares(config, format), vq::share_sub_vectors(config, format),
      vq::sub_vectors(config, format), vq::run_sub_vectors(config, format));
}

std::vector<std::string> lines(const KvAppend& op, const KvAppendPlan& plan, const GpuSpec& gpu) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  return {
      fmt::format("tokens_per_block {}: of {} new tokens a sequence, at most",
                  plan.tokens_per_block, op.shape.new_tokens),
      share_line("keys", config, config.keys), share_line("values", config, config.values),
      fmt::format("warps_along_entries {}: of {} warps a block, those that share the entries of a "
                  "codebook",
                  config.warps_along_entries, plan.threads / 32),
      block_line(vq::block_shared_bytes(config), gpu)};
}

}  // namespace

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return lines(*attention, std::get<AttentionDecodePlan>(plan), gpu);
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    return lines(*append, std::get<KvAppendPlan>(plan), gpu);
  }
  return lines(*as_linear(problem), std::get<LinearPlan>(plan), gpu);
}

}  // namespace vqgen

#include "heuristics/explain.h"

#include <fmt/format.h>

#include "core/kernel_config.h"

namespace vqgen {
namespace {

std::string codebook_line(const char* operand, Level level, std::int64_t bytes,
                          std::int64_t block_bytes, const GpuSpec& gpu) {
  const char* reason = level == Level::shared ? "fits" : "does not fit or was fixed by the config";
  return fmt::format("{} codebooks in {} memory: {} bytes a block {} ({} of {} bytes used)",
                     operand, enum_name(level), bytes, reason, block_bytes,
                     gpu.shared_bytes_per_block);
}

std::vector<std::string> lines(const AttentionDecode& op, const AttentionDecodePlan& plan,
                               const GpuSpec& gpu) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  const std::int64_t block_bytes = vq::shared_layout(config).total;
  const auto bytes = [&](const vq::FormatConfig& f) {
    return vq::units_per_head(f, config.head_dim) * vq::unit_codebook_elements(f) * 2;
  };
  const std::int64_t blocks =
      std::int64_t{op.shape.kv_heads} * vq::head_blocks(config) * op.shape.batch;
  return {
      fmt::format("splits {}: {} (head, sequence) blocks a split for {} SMs, tiles of {} tokens",
                  plan.splits, blocks, gpu.sms, plan.tile_tokens),
      fmt::format("heads_per_block {}: a code is decoded once for {} of the group's {} query heads",
                  plan.heads_per_block, plan.heads_per_block, op.group()),
      codebook_line("key", plan.key_codebook, bytes(config.keys), block_bytes, gpu),
      codebook_line("value", plan.value_codebook, bytes(config.values), block_bytes, gpu),
  };
}

std::vector<std::string> lines(const Gemv& op, const GemvPlan& plan, const GpuSpec& gpu) {
  const vq::GemvConfig config = kernel_config(op, plan);
  const std::int64_t bytes =
      vq::units_per_chunk(config) * vq::unit_codebook_elements(config.weights) * 2;
  return {
      fmt::format("chunk_columns {}: {} rows of x as fp32, {} codebook units a chunk",
                  plan.chunk_columns, op.shape.rows, vq::units_per_chunk(config)),
      codebook_line("weight", plan.codebook, bytes, vq::shared_layout(config).total, gpu),
  };
}

}  // namespace

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return lines(*attention, std::get<AttentionDecodePlan>(plan), gpu);
  }
  return lines(std::get<Gemv>(problem), std::get<GemvPlan>(plan), gpu);
}

}  // namespace vqgen

// What a plan of kv_append has to be.
#include <bit>

#include "core/check/judge.h"
#include "core/kernel_config.h"

namespace vqgen {
namespace {

void judge_operand(Judge& judge, const vq::KvAppendConfig& config, const vq::FormatConfig& format,
                   const char* operand) {
  // Of a thread, beside what the distances to them take.
  constexpr int kMostNumbers = 64;
  const int numbers = vq::run_sub_vectors(config, format) * format.vector_size;
  judge.require(
      numbers <= kMostNumbers,
      "{}: sub_vectors_per_warp {} are {} numbers in the registers of a thread, more than "
      "{}; use fewer",
      operand, config.sub_vectors_per_warp, numbers, kMostNumbers);
}

}  // namespace

void judge_plan(Judge& judge, const KvAppendPlan& plan, const KvAppend& op, const GpuSpec& gpu) {
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.warps_along_entries)),
                "warps_along_entries {} is not a power of two", plan.warps_along_entries);
  judge.require(plan.tokens_per_block <= op.shape.new_tokens,
                "tokens_per_block {} is more than the {} new tokens of a sequence",
                plan.tokens_per_block, op.shape.new_tokens);
  if (!judge.ok()) return;
  const vq::KvAppendConfig config = kernel_config(op, plan);
  judge_operand(judge, config, config.keys, "keys");
  judge_operand(judge, config, config.values, "values");
  judge_block(judge, plan.threads, vq::block_shared_bytes(config), gpu);
}

}  // namespace vqgen

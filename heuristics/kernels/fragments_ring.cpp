#include "heuristics/kernels/fragments_ring.h"

#include <algorithm>

#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/attention.h"

namespace vqgen {

// A pipeline stage holds rows in the cache's layout; with grouped keys, one group. In a block with
// several pieces the merge buffer overlays the pipeline.
void judge_ring(Judge& judge, const AttentionMma& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  if (plan.code_stages == 0) return;
  const auto refuse_unless = [&](bool holds, const char* why) {
    judge.require(holds, "code_stages {}: {}; set it to 0", plan.code_stages, why);
  };
  refuse_unless(has_bulk_copies(gpu.arch), "the GPU has no bulk copies, which sm_90 has first");
  refuse_unless(plan.code_stages > 1, "a ring has 2 to 4 stages");
  refuse_unless(plan.code_words == 4,
                "bulk copies move rows of 4 words each, and code_words is not 4");
  refuse_unless(op.keys.layout.rows == 1 && op.values.layout.rows == 1,
                "codes are in groups of rows");
  refuse_unless(plan.schedule == Schedule::per_sequence, "schedule is balanced");
  const int rows = vq::token_tile(configured(plan, op));
  const int group = op.keys.group_tokens;
  refuse_unless(rows <= 32 && group <= 32, "a stage has room for 32 tokens");
  judge.require(group == 0 || rows == group,
                "code_stages {} with step_tokens {}: a stage has {} tokens, and a group of keys "
                "{}; set step_tokens to {} or code_stages to 0",
                plan.code_stages, plan.step_tokens, rows, group, group / 2);
}

// Long rows in pages go through a pipeline in shared memory: registers hold too few of the next
// steps, and addresses and prefetches cost instructions. Short rows and contiguous rows load as
// fast to registers, and small shared memory is better used for copies of entries.
void take_ring(AttentionMma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const bool scalar = op.keys.is_scalar() && op.values.is_scalar();
  const std::int64_t long_row = scalar ? 20 : 16;  // words
  const std::int64_t shorter = std::min(key_words(op), value_words(op));
  constexpr int kRoomy = 160 * 1024;
  if (op.shape.page_tokens == 0 || shorter < long_row) return;
  if (!scalar && gpu.shared_bytes_per_block < kRoomy) return;
  AttentionMma ring = plan;
  ring.code_stages = 2;
  ring.step_tokens = 16;
  if (check(ring, op, gpu).ok) plan = ring;
}

}  // namespace vqgen

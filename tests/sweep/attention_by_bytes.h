// Problems, plans and data of attention by int8_mma, for tests of both element types.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {

class AttentionByBytes : public SweepTest<testing::TestWithParam<DType>> {
 protected:
  static AttentionDecode problem(int head_dim = 64, int group = 4, std::int64_t tokens = 300) {
    AttentionDecode op;
    op.dtype = GetParam();
    op.shape = {.batch = 2,
                .query_heads = 2 * group,
                .kv_heads = 2,
                .head_dim = head_dim,
                .tokens = tokens};
    op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    with_integers(op.keys, true);
    with_integers(op.values, true);
    return op;
  }
  static AttentionInt8Mma plan(const AttentionDecode& op, int splits = 1) {
    AttentionInt8Mma plan{.threads = 64, .splits = splits};
    plan.heads_per_block = std::min(op.group(), 8);
    plan.pipeline_stages = 2;
    return plan;
  }
  static AttentionOutput run(const AttentionDecode& op, const AttentionInt8Mma& plan,
                             const AttentionData& data) {
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  }
  static void expect_right(const AttentionDecode& op, const AttentionInt8Mma& plan,
                           const AttentionData& data) {
    EXPECT_TRUE(is_right(reference_of(op, data), run(op, plan, data), op.dtype));
  }
  static void scale_queries(AttentionData& data, DType dtype, float by) {
    for (std::uint16_t& bits : data.queries) {
      bits = element_from_float(dtype, by * element_to_float(dtype, bits));
    }
  }
};

}  // namespace vqgen::test

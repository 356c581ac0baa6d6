// Attention on keys with dead, biased and outlying channels (uneven_channels.h), whose scales go
// into the query: for each such format, the kernel is as near its reference as without them.
#include <gtest/gtest.h>

#include "core/profiles.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/uneven_channels.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum class Keys {
  int8,
  int4,
  entries,
  stages,
  smooth,
  affine,
  scaled_entries,
  bytes_in_parts,
  smooth_bytes
};

// Formats of dataflow int8_mma.
bool of_bytes(Keys which) { return which == Keys::bytes_in_parts || which == Keys::smooth_bytes; }

VqFormat keys_of(Keys which, int head_dim) {
  if (of_bytes(which)) {
    VqFormat format{.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    with_integers(format, true);
    format.smooth = which == Keys::smooth_bytes;
    if (format.smooth) return format;
    VqFormat first = format, second = format;
    for (int i = 0; i < head_dim; ++i) {
      (i < head_dim / 2 ? first : second).channels.push_back(i);
    }
    return in_parts({first, second});
  }
  VqFormat format{.vector_size = which == Keys::int8 ? 2 : 4, .index_bits = 16};
  format.scope = Scope::channel_group;
  format.decoder = Decoder::scalar;
  if (which == Keys::affine) {
    format.decoder = Decoder::affine;
    format.scope = Scope::tensor;
    format.group_tokens = 32;
  }
  if (which == Keys::int8 || which == Keys::int4 || which == Keys::affine) return format;
  format.decoder = Decoder::table;
  format.index_bits = 6;
  format.stage_scales = true;
  format.num_codebooks = which == Keys::stages ? 2 : 1;
  if (which != Keys::scaled_entries) format.entry_type = EntryType::int8;
  if (which == Keys::smooth) {
    format.scope = Scope::head;
    format.smooth = true;
  }
  return format;
}

AttentionDecode problem_of(Keys keys, DType dtype, int head_dim, int query_heads) {
  AttentionDecode op;
  op.dtype = dtype;
  op.shape = {.batch = 2, .query_heads = query_heads, .kv_heads = 2, .head_dim = head_dim};
  op.shape.tokens = 300;
  op.shape.recent_tokens = keys == Keys::affine ? 40 : 0;
  op.keys = keys_of(keys, head_dim);
  op.values = {.vector_size = 4, .index_bits = 5, .scope = Scope::head};
  if (of_bytes(keys)) {
    op.values.index_bits = 8;
    with_integers(op.values, true);
  }
  return op;
}

class Uneven : public SweepTest<testing::TestWithParam<Keys>> {
 protected:
  static AttentionOutput run(const AttentionDecode& op, const AttentionData& data) {
    if (of_bytes(GetParam())) {
      AttentionInt8Mma plan{.threads = 64, .splits = 2};
      plan.heads_per_block = std::min(op.group(), 8);
      plan.pipeline_stages = 2;
      return Kernel(*sweep_backend(0), op, plan, sweep_gpu()).run(data);
    }
    auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
    plan.threads = 64;
    plan.splits = 2;
    return Kernel(*sweep_backend(0), op, plan, sweep_gpu()).run(data);
  }
};

TEST_P(Uneven, ChannelsLeaveTheOthersTheirResolution) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const AttentionDecode op =
        problem_of(GetParam(), dtype, dtype == DType::f16 ? 128 : 64, dtype == DType::f16 ? 8 : 10);
    ASSERT_TRUE(has_channel_scales(op.keys, op.shape.head_dim));
    const auto scale = static_cast<double>(softmax_scale(op));
    for (const bool uneven : {false, true}) {
      const AttentionData data = make_attention_data(op, {.seed = 21, .uneven = uneven});
      const AttentionResult reference = reference_attention(data, scale);
      const AttentionOutput output = run(op, data);
      const Comparison out = compare(reference.out, output.out, op.dtype);
      EXPECT_LT(out.rel_err, tolerance(dtype) / 2) << uneven;
      EXPECT_TRUE(out.ok) << out.max_local_err;
      EXPECT_TRUE(compare_lse(reference.lse, output.lse, op.dtype).ok);
    }
  }
}

// A row that needs a second product changes no bit of a neighbouring row that does not.
TEST_P(Uneven, RowsDoNotChangeTheirNeighbours) {
  const AttentionDecode op = problem_of(GetParam(), DType::f16, 64, 8);
  AttentionData data = make_attention_data(op, {.seed = 22});
  const AttentionOutput before = run(op, data);
  const std::size_t row = 64;  // in the first head, whose block has others
  for (std::size_t i = 0; i < row; ++i) {
    const float value = element_to_float(op.dtype, data.queries[i]);
    data.queries[i] = element_from_float(op.dtype, 64 * value);
  }
  const AttentionOutput after = run(op, data);
  EXPECT_NE(std::vector(before.out.begin(), before.out.begin() + row),
            std::vector(after.out.begin(), after.out.begin() + row));
  EXPECT_EQ(std::vector(before.out.begin() + row, before.out.end()),
            std::vector(after.out.begin() + row, after.out.end()));
}

INSTANTIATE_TEST_SUITE_P(Keys, Uneven,
                         testing::Values(Keys::int8, Keys::int4, Keys::entries, Keys::stages,
                                         Keys::smooth, Keys::affine, Keys::scaled_entries,
                                         Keys::bytes_in_parts, Keys::smooth_bytes));

}  // namespace
}  // namespace vqgen::test

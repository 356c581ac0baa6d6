// check() on attention_decode: every rule has a case that breaks it and a near miss that passes.
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

AttentionDecode sound() {
  return std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
}
GpuSpec h200() { return find_gpu("h200"); }

Verdict judge(const AttentionDecodePlan& plan, const AttentionDecode& op = sound()) {
  return check(plan, op, h200());
}

TEST(CheckAttention, FormatsOfKeysAndValues) {
  check_format_rules(sound().keys, "keys", [](const VqFormat& format) {
    AttentionDecode op = sound();
    op.keys = format;
    return op;
  });
  check_format_rules(sound().values, "values", [](const VqFormat& format) {
    AttentionDecode op = sound();
    op.values = format;
    return op;
  });
}

TEST(CheckAttention, HeadDim) {
  AttentionDecode op = sound();
  for (const int head_dim : {64, 96, 128, 256}) {
    op.shape.head_dim = head_dim;
    expect_ok(check(op));
  }
  for (const int head_dim : {32, 80, 112, 512}) {
    op.shape.head_dim = head_dim;
    expect_refused(check(op), {"head_dim " + std::to_string(head_dim), "not built yet", "96"});
    expect_refused(judge({}, op), {"head_dim " + std::to_string(head_dim), "not built yet"});
  }
}

TEST(CheckAttention, TheDefaultPlanIsSound) { expect_ok(judge({})); }

TEST(CheckAttention, ThreadsCoverTheSubVectorsOfAValue) {
  AttentionDecode op = sound();
  op.values.vector_size = 2;
  expect_ok(judge({.threads = 64}, op));
  expect_refused(judge({.threads = 32}, op), {"threads 32", "64 sub-vectors"});
  op.values.vector_size = 4;
  expect_ok(judge({.threads = 32}, op));
}

TEST(CheckAttention, ThreadsAreWholeWarpsUpTo1024) {
  for (const int threads : {32, 96, 1024}) expect_ok(judge({.threads = threads}));
  for (const int threads : {48, 1000}) {
    expect_refused(judge({.threads = threads}),
                   {"threads " + std::to_string(threads), "multiple of 32 up to 1024"});
  }
  expect_refused(judge({.threads = 1056}), {"threads 1056 is not within 32..1024"});
}

TEST(CheckAttention, LanesPerTokenAreAPowerOfTwo) {
  for (const int lanes : {1, 2, 4, 8, 16, 32}) expect_ok(judge({.lanes_per_token = lanes}));
  for (const int lanes : {3, 12, 31}) {
    expect_refused(judge({.lanes_per_token = lanes}),
                   {"lanes_per_token " + std::to_string(lanes), "power of two up to 32"});
  }
}

TEST(CheckAttention, HeadsPerBlockStayWithinAGroup) {
  for (const int heads : {1, 3, 4}) expect_ok(judge({.heads_per_block = heads}));
  expect_refused(judge({.heads_per_block = 5}), {"heads_per_block 5", "4 query heads"});
}

TEST(CheckAttention, AccumulatorsFitTheRegisters) {
  AttentionDecode op = sound();
  op.shape.query_heads = 64;  // groups of 32
  op.values.vector_size = 8;
  expect_ok(judge({.heads_per_block = 16}, op));
  expect_refused(judge({.heads_per_block = 17}, op),
                 {"heads_per_block 17", "vector_size 8", "registers"});
  op.values.vector_size = 4;
  expect_ok(judge({.heads_per_block = 32}, op));
}

TEST(CheckAttention, HeadsFitTheGridsSecondAxis) {
  AttentionDecode op = sound();
  op.shape.kv_heads = op.shape.query_heads = 65535;
  expect_ok(judge({}, op));
  op.shape.kv_heads = 32767;
  op.shape.query_heads = 3 * 32767;
  expect_ok(judge({.heads_per_block = 2}, op));
  expect_refused(judge({.heads_per_block = 1}, op), {"32767 KV heads of 3 blocks", "grid"});
}

TEST(CheckAttention, SharedMemoryIsCountedToTheByte) {
  const AttentionDecodePlan plan{.value_codebook = all_shared(sound().values.entries())};
  GpuSpec gpu = h200();
  gpu.shared_bytes_per_block =
      static_cast<int>(vq::shared_layout(kernel_config(sound(), plan)).total);
  expect_ok(check(plan, sound(), gpu));
  gpu.shared_bytes_per_block -= 1;
  expect_refused(
      check(plan, sound(), gpu),
      {std::to_string(gpu.shared_bytes_per_block + 1),
       "NVIDIA H200 has " + std::to_string(gpu.shared_bytes_per_block), "global memory", "tile"});
  AttentionDecodePlan global = plan;
  global.value_codebook = all_global();
  expect_ok(check(global, sound(), gpu));
}

TEST(CheckAttention, FieldsOutOfTheirRangesAreRefusedBeforeAnythingIsDerived) {
  check_plan_ranges<AttentionDecodePlan>([](const auto& plan) { return judge(plan); });
}

TEST(CheckAttention, APlanOfAnotherOpIsRefused) {
  expect_refused(check(LinearPlan{}, sound(), h200()), {"another op", "attention_decode"});
}

}  // namespace
}  // namespace vqgen

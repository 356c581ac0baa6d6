// check() on the histogram attention dataflow: each rule has a case that breaks it and a near miss
// that passes.
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

GpuSpec gpu_of_bins() { return find_gpu("h200"); }

AttentionDecode sound_bins() {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .tokens = 5000};
  op.keys = {.vector_size = 64, .index_bits = 12, .num_codebooks = 6, .scope = Scope::tensor};
  op.values = {.vector_size = 128, .index_bits = 12, .num_codebooks = 8, .scope = Scope::tensor};
  return op;
}

Verdict of_wide_problem(void (*change)(AttentionDecode& op)) {
  AttentionDecode op = sound_bins();
  change(op);
  return check(AttentionHistogram{}, op, gpu_of_bins());
}
Verdict of_plan(const AttentionHistogram& plan) { return check(plan, sound_bins(), gpu_of_bins()); }

TEST(CheckBins, TheDefaultPlanIsSound) {
  expect_ok(of_plan({}));
  check_plan_ranges(sound_bins(), gpu_of_bins());
}

TEST(CheckBins, FormatsOfKeysAndValues) {
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.keys.vector_size = 8; }),
                 {"keys: entries of 8 elements", "use dataflow simt"});
  expect_ok(of_wide_problem([](AttentionDecode& op) { op.keys.vector_size = 16; }));
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.values.vector_size = 4; }),
                 {"values: entries of 4 elements"});
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.values.index_bits = 3; }),
                 {"values: codebooks of 8 entries", "16"});
  expect_ok(of_wide_problem([](AttentionDecode& op) { op.values.index_bits = 4; }));
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.keys.hadamard = true; }),
                 {"keys", "transforms", "use dataflow simt"});
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.values.stage_scales = true; }),
                 {"values", "scales"});
  expect_refused(of_wide_problem([](AttentionDecode& op) {
                   op.values = {.vector_size = 4, .index_bits = 16, .decoder = Decoder::scalar};
                 }),
                 {"values", "plain codebooks"});
}

TEST(CheckBins, ShapesOfTheCache) {
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.shape.page_tokens = 16; }),
                 {"pages", "use dataflow simt"});
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.shape.query_tokens = 2; }),
                 {"2 query tokens", "use dataflow simt"});
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.shape.query_heads = 18; }),
                 {"9 query heads", "more than the 8"});
  expect_ok(of_wide_problem([](AttentionDecode& op) {
    op.shape.recent_tokens = 1024;
    op.shape.sinks = 4;
  }));
  expect_refused(of_wide_problem([](AttentionDecode& op) { op.shape.query_heads = 16; }),
                 {"tokens_per_thread 16", "registers"});
  AttentionDecode op = sound_bins();
  op.dtype = DType::bf16;
  expect_ok(check(AttentionHistogram{}, op, find_gpu("a100")));
  expect_refused(check(choose_plan(AttentionHistogram{}, op, find_gpu("t4")), op, find_gpu("t4")),
                 {"bf16"});
  op = sound_bins();
  op.shape.batch = 65535;
  expect_refused(check(AttentionHistogram{}, op, gpu_of_bins()),
                 {"tables, scores and bins", "half of"});
}

TEST(CheckBins, BlocksAndTheirShares) {
  expect_refused(of_plan({.tokens_per_thread = 6}), {"tokens_per_thread 6", "multiple of 4"});
  expect_refused(of_plan({.threads = 1024}), {"tokens_per_thread 16", "registers", "64"});
  expect_ok(of_plan({.threads = 1024, .tokens_per_thread = 8}));
  expect_refused(of_plan({.columns_per_block = 9}), {"columns_per_block 9", "8 columns"});
  expect_refused(of_plan({.columns_per_block = 4}), {"shared memory"});
  expect_ok(of_plan({.columns_per_block = 3}));
  expect_ok(of_plan({.columns_per_block = 8, .bin_heads = 1}));
  expect_refused(of_plan({.bin_heads = 3}), {"bin_heads 3", "power of two"});
  expect_refused(of_plan({.bin_threads = 48}), {"threads 48", "multiple of 32"});
  expect_refused(of_plan({.bin_slices = 3}), {"bin_slices 3", "powers of two"});
  expect_refused(of_plan({.entry_splits = 256, .rows_per_block = 40}), {"rows_per_block 40", "16"});
  expect_ok(of_plan({.bin_slices = 256, .entry_splits = 256, .rows_per_block = 48}));
  AttentionDecode op = sound_bins();
  op.values.index_bits = 10;
  expect_refused(check(AttentionHistogram{.entry_splits = 128}, op, gpu_of_bins()),
                 {"entry_splits 128", "1024 entries"});
}

// The rules give runnable plans for all sizes, and refuse what no plan serves.
TEST(CheckBins, RulesFitTheGpu) {
  for (const char* name : {"t4", "a100", "l40s", "h200"}) {
    const GpuSpec gpu = find_gpu(name);
    for (const int bits : {4, 8, 12, 16}) {
      for (const int group : {1, 3, 8}) {
        AttentionDecode op = sound_bins();
        op.shape.query_heads = 2 * group;
        op.keys.index_bits = op.values.index_bits = bits;
        const AttentionHistogram plan = choose_plan(AttentionHistogram{}, op, gpu);
        const Verdict verdict = check(plan, op, gpu);
        EXPECT_TRUE(verdict.ok) << name << ' ' << bits << ' ' << group << ": " << verdict.reason;
      }
    }
  }
}

TEST(CheckBins, RulesTakeThemForManyTokensAlone) {
  AttentionDecode op = sound_bins();
  op.shape.batch = 4;
  op.shape.tokens = (32768 + 4 * 4096) / 8;  // for 2 heads and 4 sequences
  EXPECT_EQ(dataflow_name(choose(op, gpu_of_bins())), "histogram");
  --op.shape.tokens;
  EXPECT_EQ(dataflow_name(choose(op, gpu_of_bins())), "simt");
  op.shape.recent_tokens = 64;  // raw tokens, which take one more kernel
  op.shape.tokens = (32768 + 4 * 4096 + 20480) / 8;
  EXPECT_EQ(dataflow_name(choose(op, gpu_of_bins())), "histogram");
  --op.shape.tokens;
  EXPECT_EQ(dataflow_name(choose(op, gpu_of_bins())), "simt");
  op.shape.recent_tokens = 0;
  op.shape.tokens = 100000;
  op.shape.query_tokens = 2;  // which the histogram dataflow refuses
  EXPECT_EQ(dataflow_name(choose(op, gpu_of_bins())), "simt");
}

// A call's kernels, and the data that they hand on.
TEST(CheckBins, WorkspaceHoldsTablesPowersAndBins) {
  const AttentionDecode op = sound_bins();
  const vq::CallShape shape = call_shape(AttentionHistogram{.splits = 2}, op);
  EXPECT_EQ(shape.count, 5);
  AttentionDecode raw = op;
  raw.shape.recent_tokens = 129;
  EXPECT_EQ(call_shape(AttentionHistogram{}, raw).count, 6);
  const std::int64_t tables = 4 * 12 * 4096 * 4 * 2;
  const std::int64_t large = 2 * tables;
  const std::int64_t powers = 4 * 5000 * 4 * 2;
  const std::int64_t maxima = 4 * 1 * 2 * 4 * 4;
  const std::int64_t totals = 16 * 4;
  const std::int64_t bins = std::int64_t{2} * 8 * 16 * 4096 * 2;
  EXPECT_EQ(shape.handed_bytes, tables + large + powers + maxima + totals + bins);
  const std::int64_t partials = 2 * 8 * 8 * (128 + 2) * 4;
  EXPECT_EQ(shape.workspace_bytes, vq::kCounterBytes + shape.handed_bytes + partials);
}

}  // namespace
}  // namespace vqgen

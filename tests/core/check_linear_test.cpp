// check() on gemv: every rule has a case that breaks it and a near miss that passes.
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

Gemv sound_gemv() { return std::get<Gemv>(read_config(gemv_json(), "c.json").problem); }

Gemv grouped(int group_channels) {
  Gemv op = sound_gemv();
  op.weights.scope = Scope::channel_group;
  op.weights.group_channels = group_channels;
  return op;
}

Gemv tiled(int rows, int columns) {
  Gemv op = sound_gemv();
  op.weights.scope = Scope::tile;
  op.weights.tile_rows = rows;
  op.weights.tile_columns = columns;
  return op;
}

Verdict judge_gemv(const LinearPlan& plan, const Gemv& op = sound_gemv()) {
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckGemv, FormatOfTheWeights) {
  check_format_rules(sound_gemv().weights, "weights", [](const VqFormat& format) {
    Gemv op = sound_gemv();
    op.weights = format;
    return op;
  });
}

TEST(CheckGemv, TheDefaultPlanIsSound) { expect_ok(judge_gemv({})); }

TEST(CheckGemv, FieldsStayWithinTheirRanges) {
  check_plan_ranges<LinearPlan>([](const LinearPlan& plan) { return judge_gemv(plan); });
}

TEST(CheckGemv, TheLastBlockMergesSplitsAsFarAsCountersGo) {
  LinearPlan plan{.threads = 32,
                  .outputs_per_warp = 1,
                  .chunk_columns = 128,
                  .splits = 2,
                  .combine = Combine::last_block};
  expect_ok(judge_gemv(plan));
  plan.splits = 1;
  expect_refused(judge_gemv(plan), {"combine last_block", "splits 1", "use kernel"});
  plan.splits = 2;
  Gemv op = sound_gemv();
  op.shape.out_features = 16384;
  expect_ok(judge_gemv(plan, op));
  op.shape.out_features = 16385;
  expect_refused(judge_gemv(plan, op), {"16385 counters", "has 16384", "use kernel"});
  plan.outputs_per_warp = 2;
  expect_ok(judge_gemv(plan, op));
}

TEST(CheckGemv, ChunksHoldWholeVectors) {
  expect_ok(judge_gemv({.chunk_columns = 8}));
  expect_ok(judge_gemv({.chunk_columns = 1016}));
  for (const int columns : {4, 1020}) {
    expect_refused(judge_gemv({.chunk_columns = columns}),
                   {"chunk_columns " + std::to_string(columns), "vector_size 8"});
  }
}

TEST(CheckGemv, ChunksAndUnitsDivideOneAnother) {
  const Gemv op = grouped(96);
  for (const int columns : {8, 48, 96, 192}) expect_ok(judge_gemv({.chunk_columns = columns}, op));
  for (const int columns : {64, 80, 144}) {
    expect_refused(judge_gemv({.chunk_columns = columns}, op),
                   {"chunk_columns " + std::to_string(columns), "96 columns of a codebook"});
  }
}

TEST(CheckGemv, AnyChunkServesAUnitOfWholeRows) {
  expect_ok(judge_gemv({.chunk_columns = 640}));                  // scope tensor
  expect_ok(judge_gemv({.chunk_columns = 640}, grouped(1024)));   // a group of all 1024 columns
  expect_ok(judge_gemv({.chunk_columns = 4096}, grouped(2048)));  // wider than the matrix
  expect_refused(judge_gemv({.chunk_columns = 640}, grouped(512)), {"chunk_columns 640", "512"});
}

TEST(CheckGemv, ABlockStaysWithinATileWhoseCodebookItHolds) {
  const LinearPlan shared{.threads = 256,
                          .outputs_per_warp = 2,
                          .chunk_columns = 64,
                          .codebook = all_shared(16)};  // 16 outputs
  LinearPlan global = shared;
  global.codebook = all_global();
  expect_ok(judge_gemv(shared, tiled(32, 64)));
  expect_refused(judge_gemv(shared, tiled(24, 64)), {"24 rows of a tile", "16 outputs"});
  expect_ok(judge_gemv(global, tiled(24, 64)));
  expect_ok(judge_gemv(shared, tiled(520, 64)));  // taller than the matrix
  Gemv scaled = tiled(24, 64);
  scaled.weights.stage_scales = true;
  expect_refused(judge_gemv(global, scaled), {"24 rows of a tile", "scales kept near"});
  scaled.weights.tile_rows = 48;
  expect_ok(judge_gemv(global, scaled));
}

TEST(CheckGemv, ThreadsAreWholeWarpsUpTo1024) {
  for (const int threads : {32, 96, 1024}) expect_ok(judge_gemv({.threads = threads}));
  for (const int threads : {48, 1000}) {
    expect_refused(judge_gemv({.threads = threads}),
                   {"threads " + std::to_string(threads), "multiple of 32 up to 1024"});
  }
  expect_refused(judge_gemv({.threads = 1056}), {"threads 1056 is not within 32..1024"});
}

TEST(CheckGemv, SharedMemoryIsCountedToTheByte) {
  const LinearPlan plan{.codebook = all_shared(sound_gemv().weights.entries())};
  GpuSpec gpu = find_gpu("t4");
  gpu.shared_bytes_per_block =
      static_cast<int>(vq::shared_layout(kernel_config(sound_gemv(), plan)).total);
  expect_ok(check(plan, sound_gemv(), gpu));
  gpu.shared_bytes_per_block -= 1;
  expect_refused(check(plan, sound_gemv(), gpu),
                 {std::to_string(gpu.shared_bytes_per_block + 1), gpu.name, "global memory"});
  expect_ok(check(LinearPlan{}, sound_gemv(), gpu));
  expect_ok(check(LinearPlan{.chunk_columns = 512, .codebook = plan.codebook}, sound_gemv(), gpu));
  expect_ok(check(LinearPlan{.codebook = {.registers = 1, .shared = 256}}, sound_gemv(), gpu));
}

TEST(CheckGemv, PlacementsFitTheCodebookAndTheRegisters) {
  const auto placed = [](const Placement& placement) {
    return judge_gemv({.codebook = placement});
  };
  ASSERT_EQ(sound_gemv().weights.entries(), 256);
  expect_ok(placed({.registers = 1, .replicated = 64, .copies = 8, .shared = 256}));
  expect_refused(placed({.shared = 257}), {"weights", "shared 257", "256 entries"});
  expect_refused(placed({.replicated = 300}), {"weights", "replicated 300", "256 entries"});
  expect_refused(placed({.replicated = 8, .copies = 12}), {"copies 12", "power of two"});
  expect_ok(placed({.registers = 16}));
  expect_refused(placed({.registers = 17}), {"17 entries", "68 registers", "lower"});
}

TEST(CheckGemv, APlanOfAnotherOpIsRefused) {
  expect_refused(check(AttentionDecodePlan{}, sound_gemv(), find_gpu("t4")),
                 {"another op", "gemv"});
}

}  // namespace
}  // namespace vqgen

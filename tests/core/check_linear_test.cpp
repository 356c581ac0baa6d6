// check() on gemv: every rule has a case that breaks it and a near miss that passes.
#include "heuristics/kernels/slice.h"
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

Verdict judge_gemv(const LinearSimt& plan, const Gemv& op = sound_gemv()) {
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

TEST(CheckGemv, FieldsStayWithinTheirRanges) { check_plan_ranges(sound_gemv(), find_gpu("h200")); }

TEST(CheckGemv, TheLastBlockMergesSplitsAsFarAsCountersGo) {
  LinearSimt plan{.threads = 32,
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
  const LinearSimt shared{.threads = 256,
                          .outputs_per_warp = 2,
                          .chunk_columns = 64,
                          .codebook = all_shared(16)};  // 16 outputs
  LinearSimt global = shared;
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
  const LinearSimt plan{.codebook = all_shared(sound_gemv().weights.entries())};
  GpuSpec gpu = find_gpu("t4");
  gpu.shared_bytes_per_block = static_cast<int>(call_shape(plan, sound_gemv()).shared_bytes());
  expect_ok(check(plan, sound_gemv(), gpu));
  gpu.shared_bytes_per_block -= 1;
  expect_refused(check(plan, sound_gemv(), gpu),
                 {std::to_string(gpu.shared_bytes_per_block + 1), gpu.name, "global memory"});
  expect_ok(check(LinearSimt{}, sound_gemv(), gpu));
  expect_ok(check(LinearSimt{.chunk_columns = 512, .codebook = plan.codebook}, sound_gemv(), gpu));
  expect_ok(check(LinearSimt{.codebook = {.registers = 1, .shared = 256}}, sound_gemv(), gpu));
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

// 9 rows, 64 outputs of 1024 columns in two stages of 8 bits: a run of 4 words is 256 columns.
Gemm grouped_product() {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 64, .in_features = 1024};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  return op;
}
LinearWgmma warpgroups() {
  return {.threads = 128,
          .outputs_per_warp = 16,
          .chunk_columns = 256,
          .rows_per_block = 16,
          .code_words = 4};
}

TEST(CheckWarpgroups, AreHoppersAlone) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    const Verdict verdict = check(warpgroups(), grouped_product(), gpu);
    if (gpu.arch == "sm_90a") {
      expect_ok(verdict);
    } else {
      expect_refused(verdict, {gpu.name, "no wgmma", "use dataflow mma"});
    }
  }
}

TEST(CheckWarpgroups, WholeGroupsTilesRowsAndRuns) {
  const auto with = [](int LinearWgmma::*field, int value) {
    LinearWgmma plan = warpgroups();
    plan.*field = value;
    return check(plan, grouped_product(), find_gpu("h200"));
  };
  for (const int threads : {256, 384, 512}) expect_ok(with(&LinearWgmma::threads, threads));
  for (const int threads : {64, 160}) {
    expect_refused(with(&LinearWgmma::threads, threads), {"threads", "whole warp groups of 128"});
  }
  for (const int outputs : {32, 48}) expect_ok(with(&LinearWgmma::outputs_per_warp, outputs));
  for (const int outputs : {8, 24}) {
    expect_refused(with(&LinearWgmma::outputs_per_warp, outputs), {"multiple of 16"});
  }
  for (const int rows : {8, 32}) expect_ok(with(&LinearWgmma::rows_per_block, rows));
  for (const int rows : {4, 12, 24, 96}) {
    expect_refused(with(&LinearWgmma::rows_per_block, rows),
                   {"rows_per_block " + std::to_string(rows), "power of two from 8"});
  }
  expect_ok(with(&LinearWgmma::chunk_columns, 512));
  expect_refused(with(&LinearWgmma::chunk_columns, 128), {"256 columns of a run"});
  expect_refused(with(&LinearWgmma::code_words, 3), {"code_words 3", "power of two"});
  expect_refused(with(&LinearWgmma::fetch_only_warps, 2),
                 {"fetch_only_warps 2", "prefetch_steps 1"});
  LinearWgmma idle = warpgroups();
  idle.fetch_only_warps = 2;
  idle.prefetch_steps = 1;
  expect_ok(check(idle, grouped_product(), find_gpu("h200")));
  EXPECT_EQ(vq::outputs_per_block(configured(idle, grouped_product())), 32);
}

TEST(CheckWarpgroups, RegistersHoldSumsCodesAndTheNextChunk) {
  LinearWgmma plan = warpgroups();
  plan.threads = 512;
  plan.rows_per_block = 64;
  const auto config = configured(plan, grouped_product());
  // 32 sums, a row of 4 octets, 8 words of codes of 2 outputs, 16 of operands, 32 others.
  EXPECT_EQ(vq::registers_of(config), 32 + 16 + 16 + 16 + 32);
  expect_ok(check(plan, grouped_product(), find_gpu("h200")));
  plan.chunk_columns = 512;  // 16 more, to the last of 65536 / 512
  expect_ok(check(plan, grouped_product(), find_gpu("h200")));
  for (const auto& [field, value] :
       {std::pair{&LinearWgmma::rows_per_block, 128}, std::pair{&LinearWgmma::chunk_columns, 768},
        std::pair{&LinearWgmma::outputs_per_warp, 32},
        std::pair{&LinearWgmma::prefetch_steps, 1}}) {
    LinearWgmma more = plan;
    more.*field = value;
    expect_refused(check(more, grouped_product(), find_gpu("h200")),
                   {"registers per thread, of 128", "lower threads"});
  }
}

LinearWgmmaLargeM rowgroups() {
  return {.threads = 128, .chunk_columns = 256, .rows_per_block = 16, .code_words = 4};
}

TEST(CheckRowgroups, AreHoppersAlone) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    const Verdict verdict = check(rowgroups(), grouped_product(), gpu);
    if (gpu.arch == "sm_90a") {
      expect_ok(verdict);
    } else {
      expect_refused(verdict, {gpu.name, "no wgmma", "use dataflow mma"});
    }
  }
}

TEST(CheckRowgroups, WholeGroupsTilesRowsAndRegisters) {
  const auto with = [](int LinearWgmmaLargeM::*field, int value) {
    LinearWgmmaLargeM plan = rowgroups();
    plan.*field = value;
    return check(plan, grouped_product(), find_gpu("h200"));
  };
  for (const int threads : {256, 384, 512}) expect_ok(with(&LinearWgmmaLargeM::threads, threads));
  expect_refused(with(&LinearWgmmaLargeM::threads, 160),
                 {"threads 160", "whole warp groups of 128"});
  expect_refused(with(&LinearWgmmaLargeM::outputs_per_warp, 24), {"multiple of 16"});
  for (const int rows : {8, 128, 256}) expect_ok(with(&LinearWgmmaLargeM::rows_per_block, rows));
  expect_refused(with(&LinearWgmmaLargeM::rows_per_block, 96),
                 {"rows_per_block 96", "power of two from 8"});
  expect_refused(with(&LinearWgmmaLargeM::chunk_columns, 128), {"256 columns of a run"});
  expect_refused(with(&LinearWgmmaLargeM::chunk_columns, 1 << 22),
                 {"chunk_columns 4194304 are more than the 1024 inputs"});
  LinearWgmmaLargeM plan = rowgroups();
  plan.threads = 512;
  plan.rows_per_block = 128;  // 64 sums, 16 words of codes, 16 of operands, 32 others
  expect_ok(check(plan, grouped_product(), find_gpu("h200")));
  plan.outputs_per_warp = 32;
  expect_refused(check(plan, grouped_product(), find_gpu("h200")),
                 {"224 registers per thread, of 128", "lower threads"});
}

TEST(CheckRowgroups, AddBytesOfFormatsWhoseSumsAre) {
  Gemm op = grouped_product();
  LinearWgmmaLargeM plan = rowgroups();
  plan.byte_sums = 1;
  plan.codebook = all_shared(256);
  const auto verdict = [&] { return check(plan, op, find_gpu("h200")); };
  expect_refused(verdict(), {"entries whose sums over the stages are bytes"});
  op.weights.entry_type = EntryType::int8;
  op.weights.stage_scales = op.weights.common_scale = true;
  expect_ok(verdict());
  plan.codebook = all_global();
  expect_refused(verdict(), {"all 256 entries in shared memory"});
  plan.codebook = all_shared(256);
  op.weights.scope = Scope::channel_group;
  op.weights.group_channels = 512;
  expect_refused(verdict(), {"2 codebooks serve the columns of an output", "byte_sums 1"});
  // With several codebooks the rules add entries as elements.
  EXPECT_EQ(choose_plan(LinearWgmmaLargeM{}, op, find_gpu("h200")).byte_sums, 0);
  expect_ok(check(choose_plan(LinearWgmmaLargeM{}, op, find_gpu("h200")), op, find_gpu("h200")));
}

TEST(CheckFragments, TakeProductsOfTheElementType) {
  Gemm op = grouped_product();
  const LinearMma plan{.chunk_columns = 256};
  GpuSpec without = find_gpu("h200");
  without.bf16_products = false;
  for (const GpuSpec& gpu : {find_gpu("t4"), without}) {
    op.dtype = DType::f16;
    expect_ok(check(plan, op, gpu));
    op.dtype = DType::bf16;
    expect_refused(check(plan, op, gpu),
                   {gpu.name, "no mma in bf16", "use dataflow simt, or dtype f16"});
    expect_ok(check(LinearSimt{}, op, gpu));
  }
  expect_ok(check(plan, op, find_gpu("h200")));
}

// 64 outputs of 4096 columns, 65536 entries of 8 elements: a step of 4 words is 2048 columns.
Gemv sliced_gemv() {
  Gemv op;
  op.shape = {.rows = 1, .out_features = 64, .in_features = 4096};
  op.weights = {.vector_size = 8, .index_bits = 16};
  return op;
}
LinearSlicedCodebook slices() {
  return {.threads = 128,
          .outputs_per_warp = 4,
          .columns_per_block = 4096,
          .entry_slices = 8,
          .rows_per_block = 4,
          .code_words = 4};
}

TEST(CheckSlices, ASplitIsAChunkAStageAndASlice) {
  const auto with = [](const Gemv& op, auto change) {
    LinearSlicedCodebook plan = slices();
    change(plan);
    return check(plan, op, find_gpu("h200"));
  };
  const auto unchanged = [](LinearSlicedCodebook&) {};
  expect_ok(with(sliced_gemv(), unchanged));
  expect_ok(with(sliced_gemv(), [](LinearSlicedCodebook& p) { p.columns_per_block = 2048; }));
  for (const int count : {1, 2, 4}) {  // more than a block holds
    expect_refused(with(sliced_gemv(), [&](LinearSlicedCodebook& p) { p.entry_slices = count; }),
                   {"shared memory per block"});
  }
  for (const int count : {3, 16}) {
    expect_refused(with(sliced_gemv(), [&](LinearSlicedCodebook& p) { p.entry_slices = count; }),
                   {"entry_slices " + std::to_string(count), "16 bytes", "2 bytes or more"});
  }
  const auto splits = [](int stages, int columns) {
    Gemv op = sliced_gemv();
    op.weights.num_codebooks = stages;
    LinearSlicedCodebook plan = slices();
    plan.columns_per_block = columns;
    expect_ok(check(plan, op, find_gpu("h200")));
    return vq::splits(configured(plan, op));
  };
  EXPECT_EQ(splits(1, 4096), 8);
  EXPECT_EQ(splits(1, 2048), 2 * 8);
  EXPECT_EQ(splits(2, 1024), 4 * 2 * 8);
  expect_refused(with(sliced_gemv(), [](LinearSlicedCodebook& p) { p.columns_per_block = 3072; }),
                 {"columns_per_block 3072", "2048 columns of a step"});
  expect_refused(with(sliced_gemv(), [](LinearSlicedCodebook& p) { p.code_words = 3; }),
                 {"code_words 3", "power of two"});
  expect_refused(with(sliced_gemv(), [](LinearSlicedCodebook& p) { p.threads = 1024; }),
                 {"registers per thread, of 32", "code_words"});
}

TEST(CheckSlices, SumsOfIntegersStayWithin32Bits) {
  Gemv op = sliced_gemv();
  op.shape.in_features = 32768;
  op.weights = {.vector_size = 8, .index_bits = 8};
  op.weights.entry_type = EntryType::int8;
  op.weights.stage_scales = true;
  LinearSlicedCodebook plan = slices();
  plan.code_words = 1;
  plan.entry_slices = 1;
  plan.columns_per_block = 16384;  // 64 sub-vectors per lane: 32767 * 127 * 8 * 64 < 2^31
  expect_ok(check(plan, op, find_gpu("h200")));
  plan.columns_per_block = 32768;
  expect_refused(check(plan, op, find_gpu("h200")),
                 {"columns_per_block 32768 pass 32 bits", "entry_slices"});
  plan.entry_slices = 2;
  expect_ok(check(plan, op, find_gpu("h200")));
}

TEST(CheckSlices, CodesAreSharesOfWordsOfOneCodebook) {
  const auto checked = [](auto change) {
    Gemv op = sliced_gemv();
    change(op.weights);
    return check(slices(), op, find_gpu("h200"));
  };
  expect_refused(checked([](VqFormat& f) { f.index_bits = 15; }), {"15 bits", "another dataflow"});
  expect_refused(checked([](VqFormat& f) { f.num_codebooks = 3; }),
                 {"48 bits", "another dataflow"});
  expect_refused(checked([](VqFormat& f) { f.decoder = Decoder::e8p; }),
                 {"decoder e8p has 256 entries", "use dataflow mma"});
  expect_refused(checked([](VqFormat& f) {
                   f.scope = Scope::channel_group;
                   f.group_channels = 1024;
                 }),
                 {"columns_per_block 4096", "1024 columns of one codebook"});
  Gemv tiles = sliced_gemv();
  tiles.weights.scope = Scope::tile;
  tiles.weights.tile_columns = 4096;
  tiles.weights.tile_rows = 24;
  expect_refused(check(slices(), tiles, find_gpu("h200")), {"24 rows of a tile", "16 outputs"});
  tiles.weights.tile_rows = 32;
  expect_ok(check(slices(), tiles, find_gpu("h200")));
}

TEST(CheckGemv, APlanOfAnotherOpIsRefused) {
  expect_refused(check(AttentionSimt{}, sound_gemv(), find_gpu("t4")), {"another op", "gemv"});
}

}  // namespace
}  // namespace vqgen

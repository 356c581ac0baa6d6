// choose(): a plan that check() accepts for every shipped GPU and config, and no plan if there is
// no kernel.
#include "heuristics/choose.h"

#include <algorithm>

#include "core/profiles.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/support.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

TEST(Choose, EveryShippedGpuRunsEveryExample) {
  std::uint64_t number = 0;
  for (const auto& path : example_configs()) {
    const Problem problem = read_config(path).problem;
    for (const std::string& name : test::a_third(gpu_names(), test::third_after(number++))) {
      SCOPED_TRACE(name + " " + path.filename().string());
      const GpuSpec gpu = find_gpu(name);
      const Plan plan = choose(problem, gpu);
      const Verdict verdict = check(plan, problem, gpu);
      EXPECT_TRUE(verdict.ok) << verdict.reason;
      EXPECT_EQ(choose(problem, gpu), plan);
      EXPECT_FALSE(explain(plan, problem, gpu).empty());
    }
  }
}

Combine combine_of(const Plan& plan) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.combine; }) return each.combine;
        return Combine::kernel;
      },
      plan);
}
int splits_in(const Plan& plan, const Problem& problem) { return call_shape(plan, problem).splits; }

TEST(Choose, TheLastBlockMergesWhereItMay) {
  const GpuSpec gpu = find_gpu("h200");
  std::size_t split = 0;
  for (const auto& path : example_configs()) {
    SCOPED_TRACE(path.filename().string());
    Config config = read_config(path);
    // Other ops have no splits to merge.
    if (!std::holds_alternative<AttentionDecode>(config.problem) && !as_linear(config.problem)) {
      continue;
    }
    for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
      ChooseOptions options{.chooser = chooser};
      options.last_block = false;
      EXPECT_NE(combine_of(choose(config.problem, gpu, options)), Combine::last_block);
      options.last_block = true;
      const Plan plan = choose(config.problem, gpu, options);
      EXPECT_TRUE(check(plan, config.problem, gpu).ok);
      // The model expects both ways without a second kernel to be faster.
      const bool splits = splits_in(plan, config.problem) > 1;
      EXPECT_EQ(combine_of(plan) != Combine::kernel, splits);
      split += splits ? 1u : 0u;
      config.plan = {{"combine", "kernel"}};
      EXPECT_EQ(combine_of(propose(config, gpu, options)), Combine::kernel);
      config.plan = {{"splits", 1}};
      EXPECT_EQ(combine_of(propose(config, gpu, options)), Combine::kernel);
    }
  }
  EXPECT_GT(split, 0u);
}

AttentionDecode with_codebooks(const std::string& keys, const std::string& values) {
  const Json json = edited(attention_json(), {{"/shape/query_heads", "32"},
                                              {"/shape/kv_heads", "8"},
                                              {"/shape/tokens", "16384"},
                                              {"/keys", '"' + keys + '"'},
                                              {"/values", '"' + values + '"'}});
  return std::get<AttentionDecode>(read_config(json, "c.json").problem);
}

// True if the key and the value codebooks are wholly in shared memory; otherwise they are global.
std::pair<bool, bool> all_near(const AttentionDecode& op, const GpuSpec& gpu) {
  const Plan plan = choose(op, gpu, {.chooser = Chooser::rules});
  const auto near = [](const Placement& placement, const VqFormat& format) {
    const bool whole = std::max(placement.shared, placement.replicated) == format.entries();
    EXPECT_TRUE(placement == all_global() || whole);
    return whole;
  };
  return {near(*placement_of(plan, Operand::keys), op.keys),
          near(*placement_of(plan, Operand::values), op.values)};
}

// Each head has 64 KiB of codebooks per operand: 99 KB hold one of them, and the keys come first.
TEST(Choose, KeysSharedAndValuesGlobalWhereOneFits) {
  const AttentionDecode op = with_codebooks("cq-2c8b", "cq-2c8b");
  ASSERT_EQ(find_gpu("rtx4090").shared_bytes_per_block, 99 * 1024);
  EXPECT_EQ(all_near(op, find_gpu("rtx4090")), std::pair(true, false));
  EXPECT_EQ(all_near(op, find_gpu("h200")), std::pair(true, true));
  GpuSpec small = find_gpu("rtx4090");
  small.shared_bytes_per_block = 64 * 1024;  // as a T4: the codebook alone would fill it
  EXPECT_EQ(all_near(op, small), std::pair(false, false));
}

// A block of 128 tokens reads fewer entries than it would load.
TEST(Choose, ShortSharesLeaveTheCodebooksWhereTheyAre) {
  AttentionDecode op = with_codebooks("cq-4c8b", "cq-4c8b");
  const GpuSpec gpu = find_gpu("h200");
  op.shape.batch = 1;
  op.shape.tokens = 1024;
  EXPECT_EQ(all_near(op, gpu), std::pair(false, false));
  const auto plan = std::get<AttentionMma>(choose(op, gpu, {.chooser = Chooser::rules}));
  EXPECT_EQ(plan.splits, 8);
  EXPECT_EQ(plan.threads, 256);
  op.shape.tokens = 4096;
  EXPECT_EQ(all_near(op, gpu), std::pair(true, true));
  op.shape.tokens = 1024;
  op.shape.batch = 16;  // no SM is left for a split
  EXPECT_EQ(all_near(op, gpu), std::pair(true, true));
}

// With a codebook per channel group, a block of 256 tokens would load an entry for each that it
// looks up.
TEST(Choose, CodebooksThatABlockReadsOnceStayWhereTheyAre) {
  const GpuSpec gpu = find_gpu("h200");
  for (const char* format : {"cq-2c8b", "cq-4c8b"}) {
    AttentionDecode op = with_codebooks(format, format);
    op.shape.kv_heads = 32;
    op.shape.batch = 1;
    op.shape.tokens = 1024;
    EXPECT_EQ(all_near(op, gpu), std::pair(false, false)) << format;
    op.shape.tokens = 2048;
    EXPECT_EQ(all_near(op, gpu), std::pair(true, true)) << format;
    op.shape.tokens = 1024;
    op.shape.batch = 8;  // no SM is left for a split
    EXPECT_EQ(all_near(op, gpu), std::pair(true, true)) << format;
  }
  AttentionDecode head = with_codebooks("vecinfer-d8b12", "vecinfer-d8b12");
  head.shape.kv_heads = 32;
  head.shape.batch = 1;
  head.shape.tokens = 1024;  // not measured: as for longer ones
  EXPECT_EQ(all_near(head, gpu), std::pair(true, true));
}

// Blocks run in more than one wave: two of 8 warps share an SM, or one of 16 warps has it.
TEST(Choose, AsManyWarpsAsCodebooksLeaveRoomFor) {
  const GpuSpec gpu = find_gpu("h200");
  const auto threads = [&](const char* format) {
    AttentionDecode op = with_codebooks(format, format);
    op.shape.kv_heads = 32;
    op.shape.batch = 8;
    return std::get<AttentionMma>(choose(op, gpu, {.chooser = Chooser::rules})).threads;
  };
  EXPECT_EQ(threads("cq-2c8b"), 512);
  EXPECT_EQ(threads("cq-4c8b"), 512);
  EXPECT_EQ(threads("vecinfer-d4b8"), 256);
}

// Keys of int8 entries leave registers for steps of 32 tokens at 96 channels too, where such steps
// are faster.
TEST(Choose, StepsOf32TokensOf96Channels) {
  AttentionDecode op = with_codebooks("vecinfer-d4b8i8", "vecinfer-d4b8i8");
  op.keys.hadamard = false;
  op.shape.batch = 6;
  op.shape.query_heads = 24;
  op.shape.head_dim = 96;
  op.shape.tokens = 20000;
  EXPECT_EQ(dataflow_name(choose(op, find_gpu("h200"))), "int8_mma");
  Config config;
  config.problem = op;
  config.plan["dataflow"] = "mma";
  const auto plan = std::get<AttentionMma>(propose(config, find_gpu("h200"), {}));
  EXPECT_EQ(plan.step_tokens, 32);
  EXPECT_EQ(plan.threads, 256);
}

// Paired quads of heads halve the multiplications with values, which the model knows.
TEST(Choose, PairsOfQuadsAreKnownToTheModel) {
  AttentionDecode op = with_codebooks("vecinfer-d4b8", "vecinfer-d4b8");
  op.shape.query_heads = 64;
  const GpuSpec gpu = find_gpu("h200");
  CostModel model(op, gpu, {});
  AttentionMma plan{.threads = 256, .step_tokens = 16, .heads_per_block = 8};
  const auto products = [&] { return model.ideal(plan)[CostPart::tensor]; };
  const double paired = products();
  plan.step_tokens = 8;
  EXPECT_TRUE(vq::pairs_quads(configured(AttentionMma{.heads_per_block = 8}, op)));
  EXPECT_FALSE(vq::pairs_quads(configured(plan, op)));
  // 5 / 2.5: a query in two parts, whose multiplications take as long for one tile as for two.
  EXPECT_NEAR(products() / paired, 2, 0.02);
  op.values = find_format("int8-channel", "test");
  EXPECT_FALSE(vq::pairs_quads(configured(AttentionMma{.heads_per_block = 8}, op)));
}

TEST(Choose, ValuesSharedWhereTheKeysAreTooLarge) {
  const AttentionDecode op = with_codebooks("vecinfer-d8b12", "vecinfer-d4b8");
  EXPECT_EQ(all_near(op, find_gpu("t4")), std::pair(false, true));
}

int heads_of(const Plan& plan) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.heads_per_block; }) return each.heads_per_block;
        return 0;
      },
      plan);
}

TEST(Choose, EveryGroupAndHeadOfManyShapesIsServed) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
      for (const int group : {1, 3, 7, 8, 9, 16, 64}) {
        for (const int vector_size : {2, 4, 8}) {
          AttentionDecode op =
              std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
          op.shape = {1, 2 * group, 2, head_dim, 1, 16, 4};
          op.keys.vector_size = op.values.vector_size = vector_size;
          const Plan plan = choose(op, gpu, {.chooser = Chooser::rules});
          EXPECT_TRUE(check(plan, op, gpu).ok);
          const int heads = heads_of(plan);
          EXPECT_GE(heads, 1);
          EXPECT_LE(heads, 8);
          EXPECT_LE(heads, group);
        }
      }
    }
  }
}

TEST(Choose, SplitsFillTheGpuAndNoMore) {
  AttentionDecode op = with_codebooks("vecinfer-d4b8", "vecinfer-d4b8");
  const auto splits = [&](int batch, std::int64_t tokens) {
    op.shape.batch = batch;
    op.shape.tokens = tokens;
    return splits_in(choose(op, find_gpu("h200"), {.chooser = Chooser::rules}), op);
  };
  EXPECT_EQ(splits(1, 1), 1);
  EXPECT_GT(splits(1, 32768), splits(8, 32768));
  EXPECT_EQ(splits(512, 32768), 1);
}

// Four stages of two-wide sub-vectors: two buffers of 64 tokens of codes fill a T4's shared memory.
TEST(Choose, WideRowsOfCodesShrinkTheTile) {
  AttentionDecode op = with_codebooks("cq-2c8b", "cq-2c8b");
  op.keys.num_codebooks = op.values.num_codebooks = 4;
  for (const int bits : {8, 16}) {
    op.keys.index_bits = op.values.index_bits = bits;
    const Plan plan = choose(op, find_gpu("t4"), {.chooser = Chooser::rules});
    EXPECT_TRUE(check(plan, op, find_gpu("t4")).ok);
    const AttentionSimt lanes = choose_plan(AttentionSimt{}, op, find_gpu("t4"));
    EXPECT_TRUE(check(Plan(lanes), op, find_gpu("t4")).ok);
    EXPECT_LT(lanes.tile_tokens, 64);
  }
}

TEST(Choose, UnitsThatShareFewFactorsWithTheChunkStillGetLongOnes) {
  Gemv op;
  op.shape = {1, 64, 8200};
  op.weights = {.vector_size = 4, .index_bits = 8, .scope = Scope::tile};
  op.weights.tile_rows = 64;
  op.weights.tile_columns = 4100;
  const Plan plan = choose(op, find_gpu("h200"), {.chooser = Chooser::rules});
  EXPECT_GE(std::get<LinearSimt>(plan).chunk_columns, 512);
}

// A user who fixes only the dataflow gets its own plan, without fields of another dataflow.
TEST(Choose, AFixedDataflowHasAPlanOfItsOwn) {
  const GpuSpec gpu = find_gpu("h200");
  const auto proposed = [&](const Problem& problem, const Json& fields, const Json& more) {
    Config config;
    config.problem = problem;
    config.source = "c.json";
    config.plan = fields;
    config.plan.merge_patch(more);
    const Plan plan = propose(config, gpu, {.chooser = Chooser::rules});
    const Verdict verdict = check(plan, problem, gpu);
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return plan;
  };
  for (const char* format : {"vecinfer-d4b8", "cq-4c8b", "cq-2c8b"}) {
    SCOPED_TRACE(format);
    const AttentionDecode op = with_codebooks(format, format);
    EXPECT_EQ(proposed(op, Json::object(), Json::object()),
              propose(op, gpu, {.chooser = Chooser::rules}));
    const auto tables =
        std::get<AttentionLut>(proposed(op, {{"dataflow", "lut"}}, {{"splits", 3}}));
    EXPECT_EQ(tables.splits, 3);
    const auto channels =
        std::get<AttentionChannels>(proposed(op, {{"splits", 3}}, {{"dataflow", "channels"}}));
    EXPECT_EQ(channels.splits, 3);
    // One codebook per head is not worth a split; one per sub-vector is.
    EXPECT_EQ(channels.key_channel_splits > 1, op.keys.scope == Scope::channel_group);
  }
  const Problem gemv =
      read_config(edited(gemv_json(), {{"/shape/out_features", "4096"}}), "c.json").problem;
  for (const char* dataflow : {"simt", "mma", "lut", "wgmma", "sliced_codebook", "wgmma_large_m"}) {
    const Plan plan = proposed(gemv, {{"dataflow", dataflow}}, Json::object());
    EXPECT_EQ(dataflow_name(plan), dataflow);
  }
}

// f16 arithmetic rounds scores more than an f16 result may show, so the heuristics leave it to the
// user.
TEST(Choose, ScoreTablesAreHalvesForBf16Alone) {
  AttentionDecode op = with_codebooks("vecinfer-d8b12", "vecinfer-d4b8");
  const GpuSpec gpu = find_gpu("h200");
  const Verdict verdict = check(choose_plan(AttentionLut{}, op, gpu), op, gpu);
  EXPECT_FALSE(verdict.ok);
  expect_words(verdict.reason, {"score tables of 4096 entries", "table_bits 16"});
  op.dtype = DType::bf16;
  const AttentionLut plan = choose_plan(AttentionLut{}, op, gpu);
  EXPECT_EQ(plan.table_bits, 16);
  EXPECT_TRUE(check(plan, op, gpu).ok);
}

TEST(Choose, EveryDataflowServesManyShapes) {
  for (const std::string name : {"h200", "t4"}) {
    const GpuSpec gpu = find_gpu(name);
    for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
      for (const int group : {1, 3, 8, 9, 64}) {
        for (const int batch : {1, 64}) {
          AttentionDecode op =
              std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
          op.shape = {batch, 2 * group, 2, head_dim, 5000, 16, 4};
          op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::channel_group};
          for (const Plan& plan : {Plan(choose_plan(AttentionLut{}, op, gpu)),
                                   Plan(choose_plan(AttentionChannels{}, op, gpu))}) {
            const Verdict verdict = check(plan, op, gpu);
            EXPECT_TRUE(verdict.ok) << verdict.reason;
          }
        }
      }
    }
  }
}

// Two words of codes per sub-vector, for which sliced_codebook has no loads; and fewer columns than
// a quarter of a chunk.
TEST(Choose, LongCodesAndFewColumnsGetAKernelToo) {
  Gemm long_codes;
  long_codes.shape = {13, 4099, 32};
  long_codes.weights = {
      .vector_size = 4, .index_bits = 16, .num_codebooks = 4, .output_scales = true};
  Gemm two_columns;
  two_columns.shape = {8, 1, 2};
  two_columns.weights = {.vector_size = 2, .index_bits = 8};
  for (const Problem& problem : {Problem(long_codes), Problem(two_columns)}) {
    for (const std::string& name : gpu_names()) {
      const GpuSpec gpu = find_gpu(name);
      for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
        EXPECT_TRUE(check(choose(problem, gpu, {.chooser = chooser}), problem, gpu).ok) << name;
      }
      EXPECT_FALSE(rank(problem, gpu, {}).empty()) << name;
    }
  }
}

TEST(Choose, WhereThereIsNoKernelItSaysWhy) {
  const AttentionDecode sound = with_codebooks("cq-4c8b", "cq-4c8b");
  AttentionDecode op = sound;
  op.shape.head_dim = 72;
  expect_words(message_of([&] { choose(op, find_gpu("h200")); }, ErrorKind::infeasible),
               {"attention_decode: head_dim 72 is not built yet"});
  GpuSpec tiny = find_gpu("t4");
  tiny.shared_bytes_per_block = 1024;
  expect_words(message_of([&] { choose(sound, tiny); }, ErrorKind::infeasible),
               {"attention_decode: needs", "bytes of shared memory", tiny.name});
}

}  // namespace
}  // namespace vqgen

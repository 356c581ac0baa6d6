// check() on attention_decode: every rule has a case that breaks it and a near miss that passes.
#include "heuristics/choose.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

AttentionDecode sound_attention() {
  return std::get<AttentionDecode>(read_config(attention_json(), "c.json").problem);
}
GpuSpec h200() { return find_gpu("h200"); }

template <class P = AttentionSimt>
Verdict judge(const P& plan, const AttentionDecode& op = sound_attention()) {
  return check(Plan(plan), op, h200());
}

TEST(CheckAttention, FormatsOfKeysAndValues) {
  check_format_rules(sound_attention().keys, "keys", [](const VqFormat& format) {
    AttentionDecode op = sound_attention();
    op.keys = format;
    return op;
  });
  check_format_rules(sound_attention().values, "values", [](const VqFormat& format) {
    AttentionDecode op = sound_attention();
    op.values = format;
    return op;
  });
}

TEST(CheckAttention, HeadDim) {
  AttentionDecode op = sound_attention();
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    op.shape.head_dim = head_dim;
    expect_ok(check(op));
  }
  for (const int head_dim : {32, 72, 144, 512}) {
    op.shape.head_dim = head_dim;
    expect_refused(check(op), {"head_dim " + std::to_string(head_dim), "not built yet", "96"});
    expect_refused(judge({}, op), {"head_dim " + std::to_string(head_dim), "not built yet"});
  }
}

TEST(CheckAttention, ValueHeadDim) {
  AttentionDecode op = sound_attention();
  for (const int value_head_dim : {64, 80, 128, 192, 256}) {
    op.shape.value_head_dim = value_head_dim;
    expect_ok(check(op));
  }
  op.shape.value_head_dim = 100;
  expect_refused(check(op), {"value_head_dim 100 is not built yet", "96"});
  expect_refused(judge({}, op), {"value_head_dim 100"});
  op.shape.value_head_dim = 64;
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::channel_group};
  op.values.group_channels = 128;
  expect_words(message_of([&] { validate(op, "c.json"); }),
               {"c.json: /values/group_channels: 128 does not divide value_head_dim 64"});
  op.values.group_channels = 64;
  EXPECT_NO_THROW(validate(op, "c.json"));
  op.keys = op.values;
  op.keys.group_channels = 128;  // of its own row
  EXPECT_NO_THROW(validate(op, "c.json"));
}

TEST(CheckAttention, HadamardTakesTheSizesThatHaveAMatrix) {
  AttentionDecode op = sound_attention();
  op.keys = op.values = find_format("vecinfer-d4b8", "test");
  op.values.smooth = op.values.hadamard = false;
  for (const int head_dim : {64, 80, 96, 112, 160, 192}) {
    op.shape.head_dim = head_dim;
    EXPECT_NO_THROW(validate(op, "c.json")) << head_dim;
  }
  op.shape.head_dim = 144;
  expect_words(message_of([&] { validate(op, "c.json"); }),
               {"c.json: /keys: hadamard takes", "12, 20 or 28, not 144; set it to false"});
}

TEST(CheckAttention, TheDefaultPlanIsSound) { expect_ok(judge({})); }

TEST(CheckAttention, ThreadsCoverTheSubVectorsOfAValue) {
  AttentionDecode op = sound_attention();
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
  AttentionDecode op = sound_attention();
  op.shape.query_heads = 64;  // groups of 32
  op.values.vector_size = 8;
  expect_ok(judge({.heads_per_block = 16}, op));
  expect_refused(judge({.heads_per_block = 17}, op),
                 {"heads_per_block 17", "vector_size 8", "registers"});
  op.values.vector_size = 4;
  expect_ok(judge({.heads_per_block = 32}, op));
}

TEST(CheckAttention, HeadsFitTheGridsSecondAxis) {
  AttentionDecode op = sound_attention();
  op.shape.kv_heads = op.shape.query_heads = 65535;
  expect_ok(judge({}, op));
  op.shape.kv_heads = 32767;
  op.shape.query_heads = 3 * 32767;
  expect_ok(judge({.heads_per_block = 2}, op));
  expect_refused(judge({.heads_per_block = 1}, op), {"32767 KV heads of 3 blocks", "grid"});
}

TEST(CheckAttention, SharedMemoryIsCountedToTheByte) {
  const AttentionSimt plan{.value_codebook = all_shared(sound_attention().values.entries())};
  GpuSpec gpu = h200();
  gpu.shared_bytes_per_block = static_cast<int>(call_shape(plan, sound_attention()).shared_bytes());
  expect_ok(check(plan, sound_attention(), gpu));
  gpu.shared_bytes_per_block -= 1;
  expect_refused(
      check(plan, sound_attention(), gpu),
      {std::to_string(gpu.shared_bytes_per_block + 1),
       "NVIDIA H200 has " + std::to_string(gpu.shared_bytes_per_block), "global memory", "tile"});
  AttentionSimt global = plan;
  global.value_codebook = all_global();
  expect_ok(check(global, sound_attention(), gpu));
}

AttentionLut tables(int heads, int bits = 32) {
  return {.heads_per_block = heads, .table_bits = bits};
}

TEST(CheckAttention, ScoreTablesFitABlockWhole) {
  AttentionDecode op = sound_attention();
  op.shape = {1, 64, 2, 128, 100};
  op.keys = {.vector_size = 4, .index_bits = 8};  // 32 KiB per head
  expect_ok(judge(tables(4), op));
  expect_refused(judge(tables(8), op), {"score tables of 256 entries and 8 heads", "262144 bytes",
                                        "another dataflow", "heads_per_block", "table_bits 16"});
  expect_ok(judge(tables(8, 16), op));
  op.keys.index_bits = 12;
  expect_refused(judge(tables(1), op), {"4096 entries and 1 heads", "524288 bytes"});
  op.keys.vector_size = 8;
  expect_refused(judge(tables(1), op), {"262144 bytes"});
  expect_ok(judge(tables(1, 16), op));
  op.keys.num_codebooks = 2;
  expect_refused(judge(tables(1, 16), op), {"8192 entries", "262144 bytes"});
  op.keys = {.vector_size = 2, .index_bits = 16, .num_codebooks = 4};  // far beyond 32 bits
  expect_refused(judge(tables(16), op), {"262144 entries", "1073741824 bytes"});
}

TEST(CheckAttention, TheBytesOfAScoreTableAreThoseOfItsLayout) {
  AttentionDecode op = sound_attention();
  op.shape = {1, 10, 2, 96, 100};
  op.keys = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2};
  // 24 sub-vectors; 5 heads in two planes of 4, and in one plane of 8 halves.
  EXPECT_EQ(vq::table_bytes(configured(tables(5), op)), 2 * 2 * 64 * 24 * 4 * 4);
  EXPECT_EQ(vq::table_bytes(configured(tables(5, 16), op)), 1 * 2 * 64 * 24 * 8 * 2);
  EXPECT_EQ(vq::table_bytes(configured(tables(1, 16), op)), 2 * 64 * 24 * 2);
  op.keys.vector_size = 8;  // 12 sub-vectors in 8 runs of 2
  EXPECT_EQ(vq::table_bytes(configured(tables(1), op)), 2 * 64 * 16 * 4);
}

TEST(CheckAttention, WhatScoreTablesCannotTake) {
  AttentionDecode op = sound_attention();
  op.shape = {1, 64, 2, 64, 100};
  op.keys = {.vector_size = 8, .index_bits = 4};
  expect_ok(judge(tables(16), op));
  expect_refused(judge(tables(17), op), {"heads_per_block 17", "16"});
  for (const int bits : {17, 24, 31}) {
    expect_refused(judge(tables(1, bits), op), {"table_bits", "neither 16 nor 32"});
  }
  op.keys.decoder = Decoder::e8p;
  op.keys.index_bits = 16;
  expect_refused(judge(tables(1), op), {"keys", "E8P", "use dataflow simt"});
  std::swap(op.keys, op.values);
  expect_ok(judge(tables(1), op));
}

TEST(CheckAttention, ScalarCodesAreReadByLanesAndFragments) {
  AttentionDecode op = sound_attention();
  VqFormat scalar{.vector_size = 2, .index_bits = 16, .scope = Scope::channel_group};
  scalar.decoder = Decoder::scalar;
  for (const bool keys : {true, false}) {
    AttentionDecode mixed = op;
    (keys ? mixed.keys : mixed.values) = scalar;
    expect_refused(check(Plan(AttentionChannels{}), mixed, h200()), {"scalar codes", "channels"});
    EXPECT_TRUE(std::holds_alternative<AttentionMma>(choose(mixed, h200()))) << keys;
    expect_refused(check(Plan(AttentionMma{}), mixed, find_gpu("t4")), {"no int8 mma", "simt"});
    mixed.shape.head_dim = 96;  // 12 channels of a lane are 48 bits
    (keys ? mixed.keys : mixed.values).vector_size = 4;
    const Verdict narrow = check(Plan(AttentionMma{}), mixed, h200());
    if (keys) {
      expect_ok(narrow);
    } else {
      expect_refused(narrow, {"values", "no whole words", "use dataflow simt"});
    }
  }
  op.keys = scalar;
  op.keys.smooth = true;
  expect_refused(check(Plan(AttentionSimt{}), op, h200()), {"smooth", "not built yet"});
}

TEST(CheckAttention, WideVectorsAndManyStagesAreOfLanesInGlobalMemory) {
  for (const bool keys : {true, false}) {
    const std::string operand = keys ? "keys" : "values";
    AttentionDecode op = sound_attention();
    VqFormat& format = keys ? op.keys : op.values;
    format = VqFormat{.vector_size = 128, .index_bits = 4, .num_codebooks = 2};
    expect_ok(judge(std::get<AttentionSimt>(choose(op, h200())), op));
    for (const Plan& plan :
         {Plan(AttentionLut{}), Plan(AttentionChannels{}), Plan(AttentionMma{})}) {
      expect_refused(check(plan, op, h200()), {operand, "128 elements", "use dataflow simt"});
    }
    AttentionSimt near;
    (keys ? near.key_codebook : near.value_codebook).shared = 16;
    expect_refused(judge(near, op), {operand, "global memory alone", "shared"});
    format = VqFormat{.vector_size = 4, .index_bits = 4, .num_codebooks = 5};
    EXPECT_TRUE(std::holds_alternative<AttentionSimt>(choose(op, h200())));
    for (const Plan& plan :
         {Plan(AttentionLut{}), Plan(AttentionChannels{}), Plan(AttentionMma{})}) {
      expect_refused(check(plan, op, h200()), {operand, "5 residual stages", "use dataflow simt"});
    }
    // 36 stages of 16 MB for each of 256 heads.
    format =
        VqFormat{.vector_size = 128, .index_bits = 16, .num_codebooks = 36, .scope = Scope::head};
    op.shape.kv_heads = op.shape.query_heads = 256;
    expect_refused(judge({}, op), {operand, "36 residual stages", "1.55e+11 bytes", "fewer"});
    op.shape.kv_heads = op.shape.query_heads = 128;
    expect_ok(judge(std::get<AttentionSimt>(choose(op, h200())), op));
  }
}

TEST(CheckAttention, FragmentsReadZerosOfGroupsOfKeysAndOfTokensOfValues) {
  const VqFormat group = find_format("int4-kivi-keys", "test");
  const VqFormat token = find_format("int4-kivi-values", "test");
  AttentionDecode op = sound_attention();
  op.shape.recent_tokens = 32;
  const auto chosen = [&] { return std::holds_alternative<AttentionMma>(choose(op, h200())); };
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_refused(check(Plan(AttentionMma{}), op, h200()), parts);
    EXPECT_TRUE(std::holds_alternative<AttentionSimt>(choose(op, h200())));
  };
  const VqFormat table = op.keys;
  for (const bool keys : {true, false}) {
    for (const bool values : {true, false}) {
      op.keys = keys ? group : table;
      op.values = values ? token : table;
      EXPECT_TRUE(chosen()) << keys << values;
    }
  }
  op.keys = token;
  refused({"keys", "zeros", "groups of tokens", "use dataflow simt"});
  op.keys = token;
  op.keys.decoder = Decoder::scalar;
  refused({"keys", "one scale of a token", "use dataflow simt"});
  op.keys = group;
  op.keys.decoder = Decoder::scalar;
  refused({"keys", "zeros", "use dataflow simt"});
  op.keys = table;
  op.values = group;
  refused({"values", "none of groups of tokens", "use dataflow simt"});
  op.values = token;
  op.values.decoder = Decoder::scalar;
  refused({"values", "one of a token", "use dataflow simt"});
  op.values = token;
  op.values.group_channels = 8;
  refused({"values", "channels of a lane have several scales", "simt"});
  op.keys = op.values = token;
  op.keys = group;
  op.keys.group_tokens = 16;
  AttentionMma plan{.step_tokens = 32};
  expect_refused(check(Plan(plan), op, h200()), {"step_tokens 32", "16 tokens of a group"});
}

TEST(CheckAttention, ChannelsAreSplitInWholeSubVectorsAndCodebooks) {
  AttentionDecode op = sound_attention();
  op.shape = {1, 8, 2, 96, 100};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::channel_group};
  op.keys.group_channels = 48;
  op.values = {.vector_size = 8, .index_bits = 6};
  const auto channels = [](int keys, int values) {
    return AttentionChannels{.key_channel_splits = keys, .value_channel_splits = values};
  };
  for (const int splits : {1, 2, 4, 6, 12, 24}) expect_ok(judge(channels(splits, 1), op));
  for (const int splits : {5, 16, 48, 128}) {
    expect_refused(judge(channels(splits, 1), op),
                   {"key_channel_splits " + std::to_string(splits), "24 sub-vectors"});
  }
  expect_refused(judge(channels(3, 1), op), {"key_channel_splits 3", "32 channels", "48"});
  for (const int splits : {1, 2, 3, 4, 6, 12}) expect_ok(judge(channels(1, splits), op));
  expect_refused(judge(channels(1, 24), op), {"value_channel_splits 24", "12 sub-vectors"});
}

TEST(CheckAttention, SharesOfAllHeadsFitTheGridsSecondAxis) {
  AttentionDecode op = sound_attention();
  op.shape.kv_heads = op.shape.query_heads = 16384;
  AttentionChannels plan{.value_channel_splits = 2};
  expect_ok(judge(plan, op));
  plan.value_channel_splits = 4;
  expect_refused(judge(plan, op), {"16384 KV heads of 4 blocks", "grid"});
}

TEST(CheckAttention, PartialScoresAreInTheWorkspace) {
  AttentionDecode op = sound_attention();
  op.shape = {3, 8, 2, 64, 101};
  AttentionChannels plan{.splits = 2, .key_channel_splits = 4};
  const std::int64_t partials = vq::kCounterBytes + 3 * 8 * 2 * 66 * 4;
  EXPECT_EQ(call_shape(AttentionSimt{.splits = 2}, op).handed_bytes, 0);
  EXPECT_EQ(call_shape(AttentionSimt{.splits = 2}, op).workspace_bytes, partials);
  EXPECT_EQ(call_shape(plan, op).handed_bytes, 3 * 8 * 4 * 101 * 4);
  EXPECT_EQ(call_shape(plan, op).workspace_bytes, 3 * 8 * 4 * 101 * 4 + partials);
  plan.splits = 1;
  EXPECT_EQ(call_shape(plan, op).workspace_bytes, vq::kCounterBytes + 3 * 8 * 4 * 101 * 4);
  EXPECT_EQ(call_shape(AttentionSimt{}, op).workspace_bytes, 0);
}

// For many query heads, partial scores take more memory than the cache.
TEST(CheckAttention, PartialScoresFitTheDevice) {
  AttentionDecode op = sound_attention();
  op.shape = {1, 65535, 1, 64, 2147482623};
  const AttentionChannels plan;
  expect_refused(judge(plan, op), {"partial scores", "5.63e+14 bytes", "use another dataflow"});
  op.shape = {1, 1, 1, 64, 2147482623};
  expect_ok(judge(plan, op));
}

TEST(CheckAttention, TheLastBlockMergesSplitsAsFarAsCountersGo) {
  AttentionDecode op = sound_attention();
  AttentionSimt plan{.splits = 2, .combine = Combine::last_block};
  expect_ok(judge(plan, op));
  plan.splits = 1;
  expect_refused(judge(plan, op), {"combine last_block", "splits 1", "use kernel"});
  plan.splits = 2;
  op.shape.query_heads = op.shape.kv_heads = 16;
  op.shape.batch = 1024;
  expect_ok(judge(plan, op));
  op.shape.batch = 1025;
  expect_refused(judge(plan, op), {"16400 counters", "has 16384", "use kernel"});
}

TEST(CheckAttention, FragmentsTakeProductsOfTheElementType) {
  AttentionDecode op = sound_attention();
  GpuSpec without = h200();
  without.bf16_products = false;
  for (const GpuSpec& gpu : {find_gpu("t4"), without}) {
    op.dtype = DType::f16;
    expect_ok(check(AttentionMma{}, op, gpu));
    op.dtype = DType::bf16;
    expect_refused(check(AttentionMma{}, op, gpu),
                   {gpu.name, "no mma in bf16", "use dataflow simt, or dtype f16"});
    expect_ok(check(AttentionSimt{}, op, gpu));
  }
  expect_ok(check(AttentionMma{}, op, h200()));
}

TEST(CheckAttention, FieldsOutOfTheirRangesAreRefusedBeforeAnythingIsDerived) {
  check_plan_ranges(sound_attention(), h200());
}

TEST(CheckAttention, APlanOfAnotherOpIsRefused) {
  expect_refused(check(LinearSimt{}, sound_attention(), h200()),
                 {"another op", "attention_decode"});
}

}  // namespace
}  // namespace vqgen

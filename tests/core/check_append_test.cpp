// kv_append in core: configs read and written, names of its plans, and every rule of validate() and
// check(), with a case that breaks it and a near miss that passes.
#include "core/access/access_counts.h"
#include "core/plan/plan_name.h"
#include "tests/core/check_support.h"
#include "tests/core/named_plan.h"

namespace vqgen {
namespace {

KvAppend sound_append() { return std::get<KvAppend>(read_config(append_json(), "c.json").problem); }

Verdict judge_append_plan(const AppendSimt& plan, const KvAppend& op = sound_append()) {
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckAppend, AConfigReadsWhatItWrites) {
  const KvAppend op = sound_append();
  EXPECT_EQ(op.shape.new_tokens, 4);
  EXPECT_EQ(std::get<KvAppend>(
                read_config(edited(append_json(), {{"/shape/new_tokens", ""}}), "c.json").problem)
                .shape.new_tokens,
            1);
  const Json canonical = to_json(Problem(op));
  EXPECT_EQ(canonical.at("op"), "kv_append");
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(op));
  EXPECT_NE(Problem(op),
            read_config(edited(append_json(), {{"/shape/recent_tokens", "3"}}), "c").problem);
}

TEST(CheckAppend, BatchesThatLeaveTheWindow) {
  const auto with = [](const std::vector<Edit>& edits) {
    return std::get<KvAppend>(read_config(edited(append_json(), edits), "c.json").problem);
  };
  // A flush block of 1 is the default, which is not written.
  EXPECT_EQ(to_json(Problem(with({{"/shape/flush_block", "1"}}))),
            to_json(Problem(sound_append())));
  const KvAppend op = with({{"/shape/recent_tokens", "8"}, {"/shape/flush_block", "8"}});
  EXPECT_EQ(to_json(Problem(op)).at("shape").at("flush_block"), 8);
  for (const char* batch : {"0", "4097"}) {
    expect_words(message_of([&] {
                   with({{"/shape/flush_block", batch}});
                 }),
                 {"c.json: /shape/flush_block", "1 to 4096"});
  }
  // The call visits 4 new tokens and up to 7 before them.
  expect_ok(judge_append_plan({.tokens_per_block = 11}, op));
  expect_refused(judge_append_plan({.tokens_per_block = 12}, op),
                 {"tokens_per_block 12", "the 11 tokens that a call visits"});
  expect_refused(judge_append_plan({.splits = 2}, op),
                 {"splits 2", "4 new tokens", "set splits to 1, or new_tokens to at most 1"});
  const KvAppend wide = with({{"/shape/recent_tokens", "11"}, {"/shape/flush_block", "8"}});
  expect_ok(judge_append_plan({.splits = 2}, wide));
}

// Values of a preset drop its key transforms, as for attention.
TEST(CheckAppend, FormatsMayBePresets) {
  const Json json =
      edited(append_json(), {{"/keys", R"("vecinfer-d4b8")"}, {"/values", R"("vecinfer-d4b8")"}});
  const auto op = std::get<KvAppend>(read_config(json, "c.json").problem);
  EXPECT_TRUE(op.keys.smooth && op.keys.hadamard);
  EXPECT_FALSE(op.values.smooth || op.values.hadamard);
}

TEST(CheckAppend, WhatNoCacheIsIsRefused) {
  const auto refused = [](const std::vector<Edit>& edits) {
    return message_of([&] { read_config(edited(append_json(), edits), "c.json"); });
  };
  expect_words(refused({{"/shape/query_heads", "8"}}), {"/shape", "query_heads"});
  expect_words(refused({{"/shape/new_tokens", "0"}}), {"/shape/new_tokens", "from 1 to"});
  expect_words(refused({{"/shape/tokens", ""}}), {"'tokens' is missing"});
  expect_words(refused({{"/keys/vector_size", "80"}}), {"/keys/vector_size", "head_dim 128"});
  expect_words(refused({{"/values/hadamard", "true"}}), {"/values", "transform keys only"});
  expect_words(
      refused(
          {{"/keys/scope", R"("tile")"}, {"/keys/tile_rows", "8"}, {"/keys/tile_columns", "8"}}),
      {"/keys/scope", "KV cache"});
  expect_words(refused({{"/shape/batch", "65535"},
                        {"/shape/kv_heads", "65535"},
                        {"/shape/tokens", "1"},
                        {"/shape/new_tokens", "65536"}}),
               {"/shape", "new tokens", "beyond any device"});
  expect_words(refused({{"/plan", "{}"}, {"/op", R"("kv_push")"}}), {"/op", "kv_append"});
}

TEST(CheckAppend, FormatsOfKeysAndValues) {
  check_format_rules(sound_append().keys, "keys", [](const VqFormat& format) {
    KvAppend op = sound_append();
    op.keys = format;
    return op;
  });
  check_format_rules(sound_append().values, "values", [](const VqFormat& format) {
    KvAppend op = sound_append();
    op.values = format;
    return op;
  });
}

TEST(CheckAppend, HeadDim) {
  KvAppend op = sound_append();
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    op.shape.head_dim = head_dim;
    expect_ok(check(op));
    expect_ok(judge_append_plan({}, op));
  }
  for (const int head_dim : {32, 72, 512}) {
    op.shape.head_dim = head_dim;
    expect_refused(check(op), {"head_dim " + std::to_string(head_dim), "not built yet", "80"});
  }
}

TEST(CheckAppend, Ranges) { check_plan_ranges(sound_append(), find_gpu("h200")); }

TEST(CheckAppend, WarpsShareEntriesEvenly) {
  const auto along = [](int threads, int warps) {
    return judge_append_plan({.threads = threads, .warps_along_entries = warps});
  };
  expect_refused(along(96, 3), {"warps_along_entries 3", "power of two"});
  for (const int warps : {1, 2, 4}) expect_ok(along(128, warps));
  for (const int threads : {32, 96}) expect_ok(along(threads, 1));
  expect_ok(along(192, 2));
  for (const auto& [threads, warps] : {std::pair{128, 8}, {128, 32}, {32, 4}, {96, 2}, {192, 4}}) {
    expect_refused(along(threads, warps),
                   {"warps_along_entries " + std::to_string(warps),
                    "does not divide the " + std::to_string(threads / 32) + " warps of a block"});
  }
}

TEST(CheckAppend, WholeWarpsAndTokensThatThereAre) {
  expect_refused(judge_append_plan({.threads = 48}), {"threads 48", "multiple of 32"});
  expect_ok(judge_append_plan({.tokens_per_block = 4}));
  expect_refused(judge_append_plan({.tokens_per_block = 5}),
                 {"tokens_per_block 5", "4 new tokens"});
}

// The registers of a thread bound the sub-vectors per warp, by the runs that there are.
TEST(CheckAppend, SubVectorsInRegisters) {
  KvAppend op = sound_append();
  expect_ok(judge_append_plan({.sub_vectors_per_warp = 16}, op));
  op.values.vector_size = 8;
  expect_ok(judge_append_plan({.sub_vectors_per_warp = 8}, op));
  expect_refused(judge_append_plan({.sub_vectors_per_warp = 16}, op), {"values", "128 numbers"});
  op.values.scope = Scope::channel_group;  // runs of one sub-vector, whatever is asked for
  expect_ok(judge_append_plan({.sub_vectors_per_warp = 16}, op));
}

TEST(CheckAppend, SharedMemory) {
  KvAppend op = sound_append();
  op.shape.head_dim = 256;
  op.shape.new_tokens = 64;
  op.keys.vector_size = 2;
  op.keys.num_codebooks = 4;
  const AppendSimt plan{.threads = 1024, .tokens_per_block = 64, .warps_along_entries = 32};
  expect_refused(judge_append_plan(plan, op), {"bytes of shared memory per block"});
  expect_ok(judge_append_plan({.threads = 1024, .splits = 32, .tokens_per_block = 64}, op));
}

TEST(CheckAppend, Fragments) {
  const auto judge = [](const AppendMma& plan, const KvAppend& op, const char* gpu = "h200") {
    return check(plan, op, find_gpu(gpu));
  };
  KvAppend op = sound_append();
  expect_ok(judge({.tokens_per_block = 4}, op));
  expect_refused(judge({.tokens_per_block = 5}, op), {"tokens_per_block 5", "4 new tokens"});
  const int batch = op.shape.batch;
  expect_ok(judge({.tokens_per_block = 4, .sequences_per_block = batch, .row_tiles = 2}, op));
  expect_refused(judge({.tokens_per_block = 4, .sequences_per_block = batch + 1}, op),
                 {"sequences_per_block", "sequences of a call"});
  expect_refused(judge({.tokens_per_block = 4, .row_tiles = 3}, op), {"row_tiles 3", "2 nor 4"});
  op.shape.new_tokens = 128;
  expect_ok(judge({.tokens_per_block = 128}, op));
  KvAppend two = op;
  two.values.index_bits = 2;
  expect_refused(judge({}, two), {"values", "4 entries", "tile of 8", "simt"});
  two.values.index_bits = 3;
  expect_ok(judge({}, two));
  KvAppend lattice = op;
  lattice.keys = find_format("quip-2", "test");
  lattice.keys.scope = Scope::tensor;
  expect_refused(judge({}, lattice), {"keys", "codes are not numbers of entries", "simt"});
  op.dtype = DType::bf16;
  expect_ok(judge({}, op));
  expect_refused(judge({}, op, "t4"), {"bf16", "simt"});
  op.dtype = DType::f16;
  expect_ok(judge({}, op, "t4"));
  expect_refused(judge({.tokens_per_block = 128}, op, "t4"), {"bytes of shared memory per block"});
}

TEST(CheckAppend, Products) {
  const auto judge = [](const AppendGemm& plan, const KvAppend& op, const char* gpu = "h200") {
    return check(plan, op, find_gpu(gpu));
  };
  KvAppend op = sound_append();
  op.shape.new_tokens = 512;
  expect_refused(judge({}, op), {"keys", "shorter than the 16", "mma"});
  op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  op.values = find_format("vqkv-llama-3.1-8b-values", "test");
  expect_ok(judge({}, op));
  expect_ok(judge({.warpgroups = 1}, op));
  expect_refused(judge({.threads = 64, .warpgroups = 1}, op), {"threads 64", "128"});
  expect_refused(judge({.warpgroups = 1}, op, "a100"), {"no wgmma", "warpgroups to 0"});
  expect_refused(judge({.threads = 512}, op), {"164 registers per thread, of 128"});
  expect_refused(judge({.tokens_per_block = 513}, op), {"tokens_per_block"});
  KvAppend few = op;
  few.values.index_bits = 4;
  expect_refused(judge({}, few), {"values", "16 entries", "32", "simt"});
  few.values.index_bits = 5;
  expect_ok(judge({}, few));
  few.shape.new_tokens = 255;
  expect_refused(judge({}, few), {"tokens_per_block 256", "255 new tokens"});
  few.dtype = DType::bf16;
  expect_refused(judge({.tokens_per_block = 16}, few, "t4"), {"bf16", "simt"});
  few.values = find_format("vecinfer-d8b12", "test");
  few.values.smooth = few.values.hadamard = false;
  expect_refused(judge({.tokens_per_block = 16}, few), {"values", "8 elements", "mma"});
}

TEST(CheckAppend, PlansOfOtherOps) {
  const GpuSpec gpu = find_gpu("h200");
  expect_refused(check(AttentionSimt{}, sound_append(), gpu), {"another op", "kv_append"});
  expect_refused(check(LinearSimt{}, sound_append(), gpu), {"another op", "kv_append"});
  expect_refused(check(AppendSimt{}, read_config(gemv_json(), "c").problem, gpu),
                 {"another op", "gemv"});
  expect_refused(check(AppendSimt{}, read_config(attention_json(), "c").problem, gpu),
                 {"another op", "attention_decode"});
}

TEST(CheckAppend, PlansHaveNames) {
  const Plan plan = AppendSimt{.splits = 4, .warps_along_entries = 2};
  EXPECT_EQ(plan_name(plan), "append_simt/splits=4,warps_along_entries=2");
  EXPECT_EQ(named(plan_name(plan)), plan);
  EXPECT_EQ(named("append_simt/"), Plan(AppendSimt{}));
  EXPECT_EQ(named("append_mma/threads=64"), Plan(AppendMma{.threads = 64}));
  EXPECT_EQ(named("append_gemm/warpgroups=1"), Plan(AppendGemm{.warpgroups = 1}));
  expect_words(message_of([&] { named("append_simt/combine=last_block"); }), {"combine"});
  expect_words(message_of([&] { named("kv/splits=4"); }), {"append_simt/..."});
}

TEST(CheckAppend, AccessCountsSaysNothing) {
  expect_words(message_of([] { match_access_counts({}, sound_append(), "p.json"); }),
               {"p.json", "kv_append", "remove access_counts"});
}

}  // namespace
}  // namespace vqgen

// Requirements of the int8_mma attention dataflow: formats, shapes, blocks and the GPU, and the
// most tokens that a warp may sum.
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/check_support.h"
#include "tests/klt_runs.h"

namespace vqgen {
namespace {

AttentionDecode integers() {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 4096};
  op.keys = op.values = find_format("vecinfer-d4b8i8", "test");
  op.values.smooth = op.values.hadamard = false;
  return op;
}
AttentionInt8Mma sound_plan() { return {.threads = 512, .heads_per_block = 4}; }

template <class Change>
Verdict of_problem(Change change, const char* gpu = "h200") {
  AttentionDecode op = integers();
  change(op);
  return check(sound_plan(), op, find_gpu(gpu));
}
template <class Change>
Verdict of_plan(Change change, std::int64_t tokens = 4096, int group = 4) {
  AttentionDecode op = integers();
  op.shape.tokens = tokens;
  op.shape.query_heads = 8 * group;
  AttentionInt8Mma plan = sound_plan();
  change(plan);
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckAttentionInt8Mma, BothFormatsAreBytesOfOneStageAndCodebook) {
  using Op = AttentionDecode;
  expect_ok(of_problem([](Op&) {}));
  for (VqFormat Op::*const of : {&Op::keys, &Op::values}) {
    const auto with = [of](auto change) { return of_problem([&](Op& op) { change(op.*of); }); };
    const std::string name = of == &Op::keys ? "keys:" : "values:";
    expect_refused(
        with([](VqFormat& f) { f.entry_type = EntryType::element; }),
        {name, "int8 entries of 2, 4, 8 or 16 elements and codes of 8 bits", "use dataflow mma"});
    expect_refused(with([](VqFormat& f) { f.index_bits = 7; }), {name, "codes of 8 bits"});
    for (const int size : {2, 8, 16}) {
      AttentionDecode op = integers();
      (op.*of).vector_size = size;
      const GpuSpec gpu = find_gpu("h200");
      expect_ok(check(choose_plan(AttentionInt8Mma{}, op, gpu), op, gpu));
    }
    expect_refused(with([](VqFormat& f) { f.num_codebooks = 2; }), {name, "2 residual stages"});
    expect_refused(with([](VqFormat& f) {
                     f.scope = Scope::channel_group;
                     f.group_channels = 64;
                   }),
                   {name, "one codebook a head"});
    expect_ok(with([](VqFormat& f) {
      f.scope = Scope::channel_group;
      f.group_channels = 128;
    }));
    expect_ok(with([](VqFormat& f) { f.scope = Scope::tensor; }));
    expect_refused(with([](VqFormat& f) { f.layout.rows = 2; }), {name, "groups of 2 rows"});
    expect_ok(with([](VqFormat& f) { f.layout.words = 4; }));
  }
}

// Keys or values in parts are runs of channels that the lanes of a row share out evenly.
TEST(CheckAttentionInt8Mma, PartsFollowEachOtherInRowsThatLanesShare) {
  const GpuSpec gpu = find_gpu("h200");
  const auto of = [&](const VqFormat& keys, const VqFormat& values, int recent_tokens = 128) {
    AttentionDecode op = integers();
    op.keys = keys;
    op.values = values;
    op.shape.recent_tokens = recent_tokens;
    return check(choose_plan(AttentionInt8Mma{}, op, gpu), op, gpu);
  };
  const auto verdict = [&](const VqFormat& keys, int recent_tokens = 128) {
    return of(keys, test::klt_of_three_runs(), recent_tokens);
  };
  const VqFormat sound = test::klt_of_three_runs();
  for (const std::string name : {"klt-1bit", "klt-1.5bit", "klt-2bit", "klt-3bit", "klt-4bit"}) {
    expect_ok(of(find_format(name + "-keys", "test"), find_format(name + "-values", "test")));
  }
  // What calibrate(bits=..) chooses from.
  for (const auto& runs : {std::vector<std::pair<int, int>>{{64, 8}, {64, 16}},
                           {{64, 4}, {64, 16}},
                           {{64, 4}, {64, 8}},
                           {{32, 2}, {96, 4}},
                           {{64, 2}, {64, 4}}}) {
    expect_ok(of(test::klt_runs(runs), test::klt_runs(runs)));
  }
  const auto with = [&](auto change) {
    std::vector<VqFormat> parts = sound.parts;
    change(parts);
    return verdict(in_parts(parts));
  };
  expect_refused(with([](auto& parts) { std::swap(parts[0].channels, parts[1].channels); }),
                 {"keys", "do not follow each other", "use dataflow simt"});
  expect_ok(with([](auto& parts) { parts[2].vector_size = 4; }));  // rows of 40 bytes
  const auto with_less_pairs = [](auto& parts) {
    auto& pairs = parts[0].channels;
    auto& quads = parts[1].channels;
    quads.insert(quads.begin(), pairs.end() - 8, pairs.end());
    pairs.resize(24);
  };
  expect_refused(with(with_less_pairs),
                 {"keys", "12 codes of 2 channels", "shared out evenly", "use dataflow simt"});
  // Half of the lanes of values have no word of the pairs, and no word of quads instead.
  const VqFormat half = test::klt_runs({{16, 2}, {48, 8}, {64, 16}});
  expect_refused(of(sound, half), {"values", "8 codes of 2 channels", "shared out evenly"});
  expect_refused(with([](auto& parts) {
                   parts[0].vector_size = 4, parts[1].vector_size = 2;
                   parts[2].scope = Scope::channel_group;
                 }),
                 {"keys", "one codebook a head"});
  VqFormat narrow = sound.parts[2];  // rows of 16 bytes
  narrow.channels.clear();
  for (const int recent_tokens : {0, 128}) expect_ok(verdict(narrow, recent_tokens));
}

TEST(CheckAttentionInt8Mma, ABlockServesTheHeadsOfWholeQueryTokens) {
  using Op = AttentionDecode;
  expect_ok(of_problem([](Op& op) { op.shape.head_dim = 64; }));
  expect_ok(of_problem([](Op& op) { op.dtype = DType::bf16; }));
  expect_ok(of_problem([](Op& op) { op.shape.batch_invariant = true; }));
  for (const int head_dim : {80, 96, 112}) {
    expect_ok(of_problem([&](Op& op) { op.shape.head_dim = head_dim; }));
  }
  expect_ok(of_problem([](Op& op) { op.shape.recent_tokens = 128; }));
  expect_ok(of_problem([](Op& op) { op.shape.sinks = 4; }));
  expect_ok(of_problem([](Op& op) { op.shape.page_tokens = 16; }));
  expect_ok(of_problem([](Op& op) { op.shape.query_tokens = 2; }));
  const auto of_heads = [](int heads) {
    AttentionDecode op = integers();
    op.shape.query_tokens = 3;
    AttentionInt8Mma plan = sound_plan();
    plan.threads = 256;
    plan.heads_per_block = heads;
    return check(plan, op, find_gpu("h200"));
  };
  for (const int heads : {1, 4, 8}) expect_ok(of_heads(heads));
  expect_refused(of_heads(6), {"heads_per_block 6", "4 query heads", "no multiple"});
}

// A warp of a balanced block sums up its share of all sequences, or one of them.
TEST(CheckAttentionInt8Mma, BlocksShareSequencesOfABatch) {
  const auto with = [](std::int64_t tokens, int batch, bool batch_invariant = false) {
    AttentionDecode op = integers();
    op.shape.batch = batch;
    op.shape.tokens = tokens;
    op.shape.batch_invariant = batch_invariant;
    AttentionInt8Mma plan{.threads = 128, .splits = 16, .heads_per_block = 4};
    plan.schedule = Schedule::balanced;
    return check(plan, op, find_gpu("h200"));
  };
  expect_ok(with(49152, 16));
  expect_refused(with(49153, 16), {"tokens of a warp"});
  expect_ok(with(4 * 40000, 4));
  expect_refused(with(4096, 1), {"schedule 'balanced'"});
  expect_refused(with(4096, 2, true), {"schedule 'balanced'"});
}

TEST(CheckAttentionInt8Mma, TheGpuHasProductsOfBytesAndRoom) {
  const auto any = [](AttentionDecode&) {};
  for (const char* gpu : {"h100", "h200", "b200"}) expect_ok(of_problem(any, gpu));
  expect_refused(of_problem(any, "t4"), {"no int8 mma", "use dataflow mma"});
  for (const char* gpu : {"a100", "rtx4090"}) {
    expect_refused(of_problem(any, gpu), {"bytes of shared memory per block"});
    const AttentionDecode op = integers();
    expect_ok(check(choose_plan(AttentionInt8Mma{}, op, find_gpu(gpu)), op, find_gpu(gpu)));
  }
  expect_refused(of_plan([](AttentionInt8Mma& p) { p.pipeline_stages = 8; }),
                 {"bytes of shared memory per block"});
  expect_ok(of_plan([](AttentionInt8Mma& p) {
    p.pipeline_stages = 8;
    p.threads = 128;
  }));
}

TEST(CheckAttentionInt8Mma, MoreThanAQuadOfHeadsHasRegistersInSmallerBlocks) {
  const auto with = [](int heads, int threads) {
    return of_plan(
        [&](AttentionInt8Mma& p) {
          p.heads_per_block = heads;
          p.threads = threads;
        },
        4096, 8);
  };
  expect_ok(with(4, 512));
  expect_ok(with(8, 384));
  expect_refused(with(5, 416), {"threads 416", "heads_per_block 5", "at most 384"});
  expect_refused(with(8, 200), {"not a multiple of 32"});
  const auto of_heads = [](int head_dim, int heads, int threads) {
    AttentionDecode op = integers();
    op.shape.query_heads = 8 * 8;
    op.shape.head_dim = head_dim;
    return check(
        AttentionInt8Mma{.threads = threads, .heads_per_block = heads, .pipeline_stages = 2}, op,
        find_gpu("h200"));
  };
  for (const auto& [head_dim, heads, most] : std::vector<std::array<int, 3>>{
           {160, 4, 384}, {160, 8, 256}, {192, 4, 256}, {256, 4, 256}}) {
    expect_ok(of_heads(head_dim, heads, most));
    expect_refused(of_heads(head_dim, heads, most + 32),
                   {"heads of " + std::to_string(head_dim), "at most " + std::to_string(most)});
  }
  expect_refused(of_heads(192, 8, 128), {"heads_per_block 8", "192 channels", "use 4"});
  expect_refused(of_plan([](AttentionInt8Mma& p) {
                   p.heads_per_block = 5;
                   p.threads = 256;
                 }),
                 {"more than the 4 query heads"});
}

TEST(CheckAttentionInt8Mma, AWarpSumsUpAsManyTokensAs16BitsAreExactFor) {
  constexpr std::int64_t kMost = vq::kBytesMostTokens;
  const auto with = [](std::int64_t tokens, int threads, int splits, bool batch_invariant = false) {
    AttentionDecode op = integers();
    op.shape.tokens = tokens;
    op.shape.batch_invariant = batch_invariant;
    AttentionInt8Mma plan = sound_plan();
    plan.threads = threads;
    plan.splits = splits;
    return check(plan, op, find_gpu("h200"));
  };
  expect_ok(with(kMost, 32, 1));
  expect_refused(with(kMost + 1, 32, 1),
                 {"12320 tokens of a warp", "12288", "16 bits", "more splits or threads"});
  expect_ok(with(16 * kMost, 512, 1));
  expect_refused(with(16 * kMost + 1, 512, 1), {"tokens of a warp"});
  expect_ok(with(16 * kMost + 1, 512, 2));
  expect_ok(with(3 * 16 * kMost, 512, 3));
  expect_ok(with(3 * 16 * kMost, 512, 3, true));
  expect_refused(with(3 * 16 * kMost + 1, 512, 3, true), {"tokens of a warp"});
  // The rules' plan has enough splits for so many tokens.
  for (const std::int64_t tokens : {std::int64_t{200'000}, std::int64_t{3'000'000}}) {
    AttentionDecode op = integers();
    op.shape.batch = 16;
    op.shape.tokens = tokens;
    const AttentionInt8Mma plan = choose_plan(AttentionInt8Mma{}, op, find_gpu("h200"));
    EXPECT_GT(plan.splits, 1);
    expect_ok(check(plan, op, find_gpu("h200")));
  }
}

// The rules take int8_mma on Hopper, except for short blocks in more than one wave, and if blocks
// of more than four heads share a sequence and have few tokens or not all heads of a KV head.
TEST(ChooseAttentionInt8Mma, WhereItWasFaster) {
  const auto chosen = [](auto change, const char* gpu = "h200") {
    AttentionDecode op = integers();
    op.shape.batch = 16;
    change(op);
    return std::string(dataflow_name(choose(op, find_gpu(gpu))));
  };
  using Op = AttentionDecode;
  for (const char* gpu : {"h100", "h200", "gh200"}) EXPECT_EQ(chosen([](Op&) {}, gpu), "int8_mma");
  for (const char* gpu : {"a100", "b200", "rtx5090"}) {
    EXPECT_EQ(chosen([](Op&) {}, gpu), "mma") << gpu;
  }
  EXPECT_EQ(chosen([](Op& op) { op.shape.batch = 64; }), "int8_mma");
  const auto short_in_line = [](Op& op) {
    op.shape.batch = 64;
    op.shape.tokens = 1000;
  };
  EXPECT_EQ(chosen(short_in_line), "mma");
  EXPECT_EQ(chosen([](Op& op) { op.shape.query_heads = 64; }), "int8_mma");
  const auto more_heads = [](Op& op) {
    op.shape.batch = 1;
    op.shape.query_heads = 64;
    op.shape.tokens = 65536;
  };
  EXPECT_EQ(chosen(more_heads), "mma");
  const auto more_tokens = [&](Op& op) {
    more_heads(op);
    op.shape.tokens = 131072;
  };
  EXPECT_EQ(chosen(more_tokens), "int8_mma");
  const auto many_heads = [&](Op& op) {
    more_tokens(op);
    op.shape.query_heads = 120;
  };
  EXPECT_EQ(chosen(many_heads), "mma");
  EXPECT_EQ(chosen([](Op& op) { op.shape.page_tokens = 16; }), "int8_mma");
  EXPECT_EQ(chosen([](Op& op) { op.values = find_format("vecinfer-d4b8", "test"); }), "mma");
  const auto of_tokens = [](std::int64_t tokens) {
    return [tokens](Op& op) { op.shape.tokens = tokens; };
  };
  EXPECT_EQ(chosen(of_tokens(131072)), "int8_mma");
  EXPECT_EQ(chosen(of_tokens(262144)), "mma");  // more than a warp sums up
  EXPECT_EQ(chosen(of_tokens(131072), "a100"), "mma");
}

// The block size for each number of tokens and heads.
TEST(ChooseAttentionInt8Mma, SizesThatWereFaster) {
  struct Case {
    int batch, heads;
    std::int64_t tokens;
    AttentionInt8Mma expected;  // threads, splits, schedule, combine, heads, stages
  };
  constexpr Schedule kEach = Schedule::per_sequence;
  constexpr Combine kKernel = Combine::kernel;
  for (const auto& [batch, heads, tokens, expected] :
       {Case{1, 32, 512, {256, 1, kEach, kKernel, 4, 3}},
        Case{1, 32, 1024, {256, 4, kEach, kKernel, 4, 3}},
        Case{1, 32, 4096, {256, 8, kEach, kKernel, 4, 3}},
        Case{1, 32, 32768, {256, 16, kEach, kKernel, 4, 3}},
        Case{1, 32, 196608, {384, 16, kEach, kKernel, 4, 3}},
        Case{16, 32, 16384, {512, 1, kEach, kKernel, 4, 3}},
        Case{16, 64, 16384, {384, 1, kEach, kKernel, 8, 3}},
        Case{64, 32, 2048, {192, 1, kEach, kKernel, 4, 3}},
        Case{64, 32, 8192, {192, 1, kEach, kKernel, 4, 3}},
        // Quads without splits; two blocks per SM, where one per SM would leave many SMs idle.
        Case{8, 64, 933, {256, 1, kEach, kKernel, 4, 3}},
        Case{11, 32, 11251, {192, 3, kEach, kKernel, 4, 3}}}) {
    AttentionDecode op = integers();
    op.shape.batch = batch;
    op.shape.query_heads = heads;
    op.shape.tokens = tokens;
    EXPECT_EQ(choose_plan(AttentionInt8Mma{}, op, find_gpu("h200")), expected)
        << batch << " x " << tokens;
  }
}

}  // namespace
}  // namespace vqgen

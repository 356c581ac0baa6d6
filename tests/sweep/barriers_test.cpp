// Every barrier of the shipped kernels is needed, and the race checker knows: with any one of them
// left out, or a wait for copies, it reports a race.
#include <gtest/gtest.h>

#include <string>

#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// Runs over data that fills several tiles, chunks and units. Error(device) where there is a race.
void run(Backend& backend, const KernelSource& source, const Problem& problem, const Plan& plan) {
  const auto kernel = backend.load(backend.compile(source), source);
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    execute(backend, *kernel, source, *op, plan, make_attention_data(*op, HardInput{.seed = 3}));
  } else if (const auto* append = std::get_if<KvAppend>(&problem)) {
    execute(backend, *kernel, source, *append, plan,
            make_append_data(*append, HardInput{.seed = 3}));
  } else if (const auto* decode = std::get_if<KvDecode>(&problem)) {
    execute(backend, *kernel, source, *decode, plan,
            make_decode_data(*decode, HardInput{.seed = 3}));
  } else if (const auto* merge = std::get_if<AttentionMerge>(&problem)) {
    MergeData data = make_merge_data(*merge, HardInput{.seed = 3});
    data.in_place = 1;
    execute(backend, *kernel, source, *merge, plan, data);
  } else {
    const Linear& linear = *as_linear(problem);
    execute(backend, *kernel, source, linear, plan, make_linear_data(linear, HardInput{.seed = 3}));
  }
}

// But for `unseen`, where another wait covers it on the host.
void expect_every_barrier_needed(const Problem& problem, const Plan& plan, std::size_t barriers,
                                 const std::string& unseen = "") {
  const auto backend = make_host_backend({.check_races = true, .optimize = false});
  const KernelSource right = generate(problem, plan, find_gpu("h200"), Machine::host, {});
  EXPECT_NO_THROW(run(*backend, right, problem, plan));

  // Only plans whose last block merges have these run.
  const std::size_t merging = right.text.find("VQ_DEVICE bool is_last_of");
  const std::size_t merging_end = right.text.find("\n}\n", merging);
  const bool merges = merges_by_last_block(plan);
  const bool splits =
      std::holds_alternative<AttentionDecode>(problem) || as_linear(problem) != nullptr;
  ASSERT_EQ(merging_end != std::string::npos, splits);

  // And only formats with groups of tokens these.
  const auto* append = std::get_if<KvAppend>(&problem);
  const auto* attention = std::get_if<AttentionDecode>(&problem);
  const std::size_t groups =
      right.text.find(append != nullptr ? "class AppendGroups" : "class GroupQuery {");
  const std::size_t groups_end = right.text.find("\n};\n", groups);
  const bool grouped = (append != nullptr && append->keys.group_tokens > 0) ||
                       (attention != nullptr && attention->keys.group_tokens > 0);
  ASSERT_EQ(groups_end != std::string::npos,
            append != nullptr || std::holds_alternative<AttentionFragments>(plan));

  std::size_t found = 0;
  for (const std::string call : {"sync_block();", "sync_warp();", "copy_async_wait<kStages - 1>();",
                                 "warpgroup_wait<kSets - 1>();"}) {
    if (call == unseen) continue;
    for (std::size_t at = right.text.find(call); at != std::string::npos;
         at = right.text.find(call, at + 1)) {
      if (right.text[right.text.find_last_not_of(' ', at - 1)] != '\n') continue;
      if (!merges && merging < at && at < merging_end) continue;
      if (!grouped && groups < at && at < groups_end) continue;
      KernelSource wrong = right;
      wrong.text.erase(at, call.size());
      const std::string what = right.text.substr(at, 200) + " left out";
      ++found;
      try {
        run(*backend, wrong, problem, plan);
        ADD_FAILURE() << "no report with " << what;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(": race at "), std::string::npos)
            << error.what() << " with " << what;
      }
    }
  }
  EXPECT_EQ(found, barriers);
}

void expect_every_barrier_of_attention_needed(const Plan& like, std::size_t barriers) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  with_integers(op.keys,
                std::holds_alternative<AttentionFragments>(like));  // whose scales one waits for
  const Problem problem = op;
  Plan plan = rules_plan(like, problem, find_gpu("h200"));
  ASSERT_TRUE(change_own(
      plan, [](auto& own) requires requires { own.splits; } {
        own.splits = 1;
        own.threads = 128;
      }));
  expect_every_barrier_needed(problem, plan, barriers);
}

TEST(Barriers, OfAttentionByLanesAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionLanes{}, 7);
}
TEST(Barriers, OfAttentionByFragmentsAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionFragments{}, 5);
}
TEST(Barriers, OfBlocksThatShareSequencesAreAllNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 3, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionFragments>(op, find_gpu("h200"));
  plan.threads = 128;
  plan.splits = 2;
  plan.splits_by = SplitsBy::length;
  plan.combine = Combine::last_block;
  expect_every_barrier_needed(op, plan, 7);
}
TEST(Barriers, OfAttentionByTablesAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionTables{}, 8);
}
TEST(Barriers, OfAttentionByChannelsAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionChannels{}, 7);
}

// What `run` says of a kernel that differs in one place.
std::string report_of(const KernelSource& right, const Problem& problem, const Plan& plan,
                      const std::string& place, const std::string& instead,
                      ErrorKind kind = ErrorKind::device) {
  const KernelSource wrong = with_fault(right, place, instead);
  if (wrong.text == right.text) return "";
  const auto backend = make_host_backend({.check_races = true, .optimize = false});
  return message_of([&] { run(*backend, wrong, problem, plan); }, kind);
}

// Partials of other blocks: not without the counter, nor by the read-only path.
void expect_counter_needed(const Problem& problem, const Plan& plan) {
  const KernelSource right = generate(problem, plan, find_gpu("h200"), Machine::host, {});
  const std::string uncounted =
      report_of(right, problem, plan, "atomic_add_global(counter, 1u)", "u32(blocks - 1)");
  EXPECT_NE(uncounted.find(": race at "), std::string::npos) << uncounted;
  EXPECT_NE(uncounted.find("let a counter order them"), std::string::npos) << uncounted;
  const std::string read_only =
      report_of(right, problem, plan, "return load_global_coherent(pointer);",
                "return load_global(pointer);");
  EXPECT_NE(read_only.find("then load_global of 4 bytes"), std::string::npos) << read_only;
  const std::string left = report_of(right, problem, plan, "store_global(counter, 0u);", ";",
                                     ErrorKind::verification_failed);
  EXPECT_NE(left.find("counters"), std::string::npos) << left;
}

TEST(Barriers, OfTheLastBlockAreAllNeededAndItsCounter) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 6, .scope = Scope::tensor};
  auto product = rules_plan<LinearLanes>(op, find_gpu("h200"));
  product.chunk_columns = 256;
  product.splits = 3;
  product.combine = Combine::last_block;
  expect_every_barrier_needed(op, product, 4);
  expect_counter_needed(op, product);

  AttentionDecode attention;
  attention.shape = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .tokens = 300};
  attention.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  attention.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionFragments>(attention, find_gpu("h200"));
  plan.splits = 3;
  plan.threads = 64;
  plan.combine = Combine::last_block;
  expect_counter_needed(attention, plan);
}

// With one table in flight, which has all barriers; with two, where each has a wait for the copies
// of the last turn.
TEST(Barriers, OfAttentionByBinsAreAllNeeded) {
  AttentionDecode op;
  op.shape = {
      .batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300, .window = 40};
  op.keys = {.vector_size = 64, .index_bits = 12, .residuals = 6, .scope = Scope::tensor};
  op.values = {.vector_size = 64, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionBins>(op, find_gpu("h200"));
  plan.threads = 64;
  plan.tokens_per_thread = 8;
  plan.tables_in_flight = 1;
  expect_every_barrier_needed(op, plan, 8);
  plan.tables_in_flight = 2;
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  for (const char* place : {"sync_block();  // the table that", "copy_async_wait<0>();"}) {
    const std::string report = report_of(right, op, plan, place, "//");
    EXPECT_NE(report.find(": race at "), std::string::npos) << place << ": " << report;
  }
}

TEST(Barriers, OfDecodeAreAllNeeded) {
  KvDecode op;
  op.shape = {.batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 90, .window = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .residuals = 2, .scope = Scope::tensor};
  op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  // Three steps, whose codes stand in two places; codebooks by stores, and by copies.
  const DecodeLanes plan{.threads = 64,
                         .tokens_per_block = 90,
                         .key_codebook = all_shared(64),
                         .value_codebook = all_shared(64)};
  expect_every_barrier_needed(op, plan, 1);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string early =
      report_of(right, op, plan, "copy_async_wait<0>();\n      sync_block();", "sync_block();");
  EXPECT_NE(early.find(": race at "), std::string::npos) << early;
}

// Of a result that stands in place of a part.
TEST(Barriers, OfMergeAreAllNeededAndItsLoadsAreCoherent) {
  AttentionMerge op;
  op.shape = {.rows = 9, .heads = 3, .head_dim = 64, .parts = 3};
  const MergeLanes plan{.threads = 64, .blocks = 2};
  expect_every_barrier_needed(op, plan, 1);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  for (const std::string of : {"args.lses[i]", "reinterpret_cast<const U32x4*>(args.outs[i]"}) {
    const std::string report =
        report_of(right, op, plan, "load_global_coherent(" + of, "load_global(" + of);
    EXPECT_NE(report.find(": race at "), std::string::npos) << report;
  }
}

TEST(Barriers, OfAppendAreAllNeededAndOneWriterASlot) {
  KvAppend op;
  op.shape = {.batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 9, .new_tokens = 5, .window = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .residuals = 2, .scope = Scope::tensor};
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  AppendLanes plan{.tokens_per_block = 2, .warps_along_entries = 2};
  expect_every_barrier_needed(op, plan, 3);
  expect_every_barrier_needed(op, AppendFragments{.threads = 64, .tokens_per_block = 5}, 3);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string all =
      report_of(right, op, plan, "if (number >= work.all - kWindow)", "if (true)");
  EXPECT_NE(all.find(": race at "), std::string::npos) << all;
  // Shares that cut through words.
  plan.splits = 2;
  op.keys.vector_size = 8;
  op.keys.index_bits = 5;
  const KernelSource shared = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string cut = report_of(
      shared, op, plan, "while (count * f.residuals * f.index_bits % 32 != 0)", "while (false)");
  EXPECT_NE(cut.find(": race at "), std::string::npos) << cut;
}

TEST(Barriers, OfKeysInGroupsAreAllNeeded) {
  AttentionDecode op;
  op.shape = {
      .batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 600, .window = 16};
  op.keys = {.vector_size = 4, .index_bits = 16};
  op.keys.decoder = Decoder::affine;
  op.values = op.keys;
  op.keys.group_tokens = 16;
  op.values.token_scales = true;
  auto plan = rules_plan<AttentionFragments>(op, find_gpu("h200"));
  plan.threads = 128;
  plan.splits = 1;
  plan.step_tokens = 8;
  plan.key_codebook.shared = plan.value_codebook.shared = 1;
  expect_every_barrier_needed(op, plan, 7);
  const auto report = [&](const std::string& place, const std::string& instead) {
    const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
    return report_of(right, op, plan, place, instead);
  };
  EXPECT_NE(report("copy_async_wait<0>();\n    sync_warp();", "sync_warp();").find(": race at "),
            std::string::npos);
  // One step of a group: the next one's scales come once this one's are taken.
  plan.step_tokens = 16;
  EXPECT_NE(report("kTakeFirst = Reader::kSteps == 1", "kTakeFirst = false").find(": race at "),
            std::string::npos);
}

// A call whose newest tokens take the ring's slots of those that its first group begins with.
TEST(Barriers, OfAppendOfGroupsAreAllNeededAndOldTokensAreReadFirst) {
  KvAppend op;
  op.shape = {
      .batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 99, .new_tokens = 69, .window = 16};
  op.keys = {.vector_size = 4, .index_bits = 16};
  op.keys.decoder = Decoder::affine;
  op.values = op.keys;
  op.keys.group_tokens = 16;
  op.values.token_scales = true;
  const AppendLanes plan{.tokens_per_block = 35};
  expect_every_barrier_needed(op, plan, 8);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string report =
      report_of(right, op, plan, "load_global_coherent(ring", "load_global(ring");
  EXPECT_NE(report.find(": race at "), std::string::npos) << report;
}

TEST(Barriers, OfGemvAreAllNeeded) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 6, .scope = Scope::tensor};
  const Problem problem = op;
  auto plan = rules_plan<LinearLanes>(problem, find_gpu("h200"));
  plan.chunk_columns = 512;
  expect_every_barrier_needed(problem, plan, 2);
}

TEST(Barriers, OfGemvBySlicesAreAllNeeded) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.weights, true);  // whose largest magnitudes one waits for
  auto plan = rules_plan<LinearSlices>(op, find_gpu("h200"));
  plan.threads = 64;
  expect_every_barrier_needed(op, plan, 2);
}

TEST(Barriers, OfGemmAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  const Problem problem = op;
  auto small = rules_plan<LinearFragments>(problem, find_gpu("h200"));
  ASSERT_TRUE(check(small, problem, find_gpu("h200")).ok);
  small.threads = 128;
  small.warps_along_columns = 2;
  small.chunk_columns = 1024;
  small.code_words = 1;
  small.splits = 1;
  small.fusion = LinearFusion::shared;  // has one more, that of a warp
  expect_every_barrier_needed(problem, small, 5);
}

TEST(Barriers, OfGemmByBytesAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 1024;  // so that codebooks are switched
  with_integers(op.weights, true);
  LinearBytes plan{.threads = 128, .outputs_per_warp = 16, .chunk_columns = 512};
  plan.warps_along_columns = 2;
  plan.rows_per_block = 16;
  plan.code_words = 1;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 4);
}

TEST(Barriers, OfGemmByBytegroupsAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.weights, true);
  LinearBytegroups plan{.threads = 128};
  plan.code_words = 1;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 2);
  expect_every_barrier_needed(op, plan, 2, "copy_async_wait<0>();");
}

TEST(Barriers, OfGemmByWarpGroupsAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 512;  // so that codebooks are switched
  const Problem problem = op;
  LinearWarpgroups plan{.threads = 128};
  plan.rows_per_block = 16;
  plan.chunk_columns = 256;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(problem, plan, 3);
  plan.steps_ahead = 1;  // which waits for all products once a run besides
  expect_every_barrier_needed(problem, plan, 2, "warpgroup_wait<kSets - 1>();");
}

}  // namespace
}  // namespace vqgen::test

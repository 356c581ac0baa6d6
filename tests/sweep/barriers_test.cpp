// Every barrier of the shipped kernels is needed, and the race checker knows: without any one of
// them, or without a wait for copies, it reports a race.
#include <gtest/gtest.h>

#include <string>

#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/barriers.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// Other blocks' partials must not be read without the counter, nor by the read-only path.
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
  auto product = rules_plan<LinearSimt>(op, find_gpu("h200"));
  product.chunk_columns = 256;
  product.splits = 3;
  product.combine = Combine::last_block;
  expect_every_barrier_needed(op, product, 4);
  expect_counter_needed(op, product);

  AttentionDecode attention;
  attention.shape = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .tokens = 300};
  attention.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  attention.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionMma>(attention, find_gpu("h200"));
  plan.splits = 3;
  plan.threads = 64;
  plan.combine = Combine::last_block;
  expect_counter_needed(attention, plan);
}

TEST(Barriers, OfDecodeAreAllNeeded) {
  KvDequantize op;
  op.shape = {.batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 90, .recent_tokens = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2, .scope = Scope::tensor};
  op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  // Three steps use two code buffers; codebooks arrive by stores, and by copies.
  const DequantizeSimt plan{.threads = 64,
                            .tokens_per_block = 90,
                            .key_codebook = all_shared(64),
                            .value_codebook = all_shared(64)};
  expect_every_barrier_needed(op, plan, 1);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string early =
      report_of(right, op, plan, "copy_async_wait<0>();\n      sync_block();", "sync_block();");
  EXPECT_NE(early.find(": race at "), std::string::npos) << early;
}

// The result replaces one of the parts.
TEST(Barriers, OfMergeAreAllNeededAndItsLoadsAreCoherent) {
  AttentionMerge op;
  op.shape = {.rows = 9, .heads = 3, .head_dim = 64, .parts = 3};
  const MergeSimt plan{.threads = 64, .blocks = 2};
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
  op.shape = {
      .batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 9, .new_tokens = 5, .recent_tokens = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2, .scope = Scope::tensor};
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  AppendSimt plan{.tokens_per_block = 2, .warps_along_entries = 2};
  expect_every_barrier_needed(op, plan, 3);
  expect_every_barrier_needed(op, AppendMma{.threads = 64, .tokens_per_block = 5}, 3);
  KvAppend several = op;
  several.shape.batch = 3;
  several.shape.new_tokens = 2;
  expect_every_barrier_needed(
      several, AppendMma{.threads = 64, .tokens_per_block = 2, .sequences_per_block = 2}, 3);
  KvAppend wide_op = op;
  wide_op.keys = wide(32, 2, 6);
  wide_op.values = wide(64, 1, 8);
  // The values have four tiles, so that each buffer is reused; append_gemm has two warpgroups,
  // since the warps of one stay together.
  const AppendGemm by_warps{.threads = 64, .tokens_per_block = 5, .tile_bytes = 1024};
  const AppendGemm by_groups{
      .threads = 256, .tokens_per_block = 5, .tile_bytes = 1024, .warpgroups = 1};
  const std::pair<std::string, std::string> some_open{
      "open = row.real && !(", "open = row.real && !(row.token % 2 == 0 && "};
  expect_every_barrier_needed(wide_op, by_warps, 10, "", some_open);
  expect_every_barrier_needed(wide_op, by_groups, 12, "", some_open);
  for (const char* const wait : {"raw.await();", "made.await_free();", "read.await();"}) {
    const KernelSource right = generate(wide_op, by_groups, find_gpu("h200"), Machine::host, {});
    const std::string fault = report_of(right, wide_op, by_groups, wait, "");
    EXPECT_NE(fault.find(": race at "), std::string::npos) << wait << ": " << fault;
  }
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string all =
      report_of(right, op, plan, "if (number >= work.all - kWindow)", "if (true)");
  EXPECT_NE(all.find(": race at "), std::string::npos) << all;
  // Shares cut through words.
  plan.splits = 2;
  op.keys.vector_size = 8;
  op.keys.index_bits = 5;
  const KernelSource shared = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string cut =
      report_of(shared, op, plan, "while (count * f.num_codebooks * f.index_bits % 32 != 0)",
                "while (false)");
  EXPECT_NE(cut.find(": race at "), std::string::npos) << cut;
}

TEST(Barriers, OfKeysInGroupsAreAllNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 1,
              .query_heads = 4,
              .kv_heads = 1,
              .head_dim = 64,
              .tokens = 600,
              .recent_tokens = 16};
  op.keys = {.vector_size = 4, .index_bits = 16};
  op.keys.decoder = Decoder::affine;
  op.values = op.keys;
  op.keys.group_tokens = 16;
  op.values.token_scales = true;
  auto plan = rules_plan<AttentionMma>(op, find_gpu("h200"));
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
  // A group has one step: the next group's scales arrive after this one's are taken.
  plan.step_tokens = 16;
  EXPECT_NE(report("kTakeFirst = Reader::kSteps == 1", "kTakeFirst = false").find(": race at "),
            std::string::npos);
  // The ring of bulk copies brings the codes.
  plan.step_tokens = 8;
  plan.code_stages = 2;
  expect_every_barrier_needed(op, plan, 7);
  EXPECT_NE(report("reader_.await();", ";").find("copy_bulk of 16 bytes"), std::string::npos);
  // Sums that are stored over the ring's barriers are found.
  EXPECT_NE(report("beside() + number;",
                   "beside() + number - fragments_layout(kConfig).ring_barriers / 8;")
                .find("over a barrier of bulk copies"),
            std::string::npos);
  op.keys = op.values = {.vector_size = 2, .index_bits = 16, .decoder = Decoder::scalar};
  op.shape.recent_tokens = 0;
  EXPECT_NE(report("if constexpr (!kGrouped) sync_warp();", "").find(": race at "),
            std::string::npos);
}

// The call's newest tokens overwrite ring slots from which its first group reads.
TEST(Barriers, OfAppendOfGroupsAreAllNeededAndOldTokensAreReadFirst) {
  KvAppend op;
  op.shape = {.batch = 1,
              .kv_heads = 1,
              .head_dim = 64,
              .tokens = 99,
              .new_tokens = 69,
              .recent_tokens = 16};
  op.keys = {.vector_size = 4, .index_bits = 16};
  op.keys.decoder = Decoder::affine;
  op.values = op.keys;
  op.keys.group_tokens = 16;
  op.values.token_scales = true;
  const AppendSimt plan{.tokens_per_block = 35};
  expect_every_barrier_needed(op, plan, 8);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string report =
      report_of(right, op, plan, "load_global_coherent(ring + Raw", "load_global(ring + Raw");
  EXPECT_NE(report.find(": race at "), std::string::npos) << report;
}

TEST(Barriers, OfGemvAreAllNeeded) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 6, .scope = Scope::tensor};
  const Problem problem = op;
  auto plan = rules_plan<LinearSimt>(problem, find_gpu("h200"));
  plan.chunk_columns = 512;
  expect_every_barrier_needed(problem, plan, 2);
}

TEST(Barriers, OfGemvBySlicesAreAllNeeded) {
  Gemv op;
  op.shape = {.rows = 2, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.weights, true);  // one barrier waits for their largest magnitudes
  auto plan = rules_plan<LinearSlicedCodebook>(op, find_gpu("h200"));
  plan.threads = 64;
  expect_every_barrier_needed(op, plan, 2);
}

TEST(Barriers, OfGemmAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  const Problem problem = op;
  auto small = rules_plan<LinearMma>(problem, find_gpu("h200"));
  ASSERT_TRUE(check(small, problem, find_gpu("h200")).ok);
  small.threads = 128;
  small.warps_along_columns = 2;
  small.chunk_columns = 1024;
  small.code_words = 1;
  small.splits = 1;
  small.fusion = LinearFusion::shared;  // has one more barrier, a warp's
  expect_every_barrier_needed(problem, small, 5);
}

// Expects the ring's waits for bulk copies to be needed.
void expect_waits_for_chunks(const Gemm& op, const Plan& plan, const std::string& wait) {
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string early = report_of(right, op, plan, wait, ";");
  EXPECT_NE(early.find("copy_bulk of 16 bytes"), std::string::npos) << early;
  const std::string fewer = report_of(right, op, plan, "kLast = kReaders - 1;", "kLast = 0;");
  EXPECT_NE(fewer.find(": race at "), std::string::npos) << fewer;
}

TEST(Barriers, OfGemmByBytesAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 1024;  // so that codebooks are switched
  with_integers(op.weights, true);
  LinearInt8Mma plan{.threads = 128, .outputs_per_warp = 16, .chunk_columns = 512};
  plan.warps_along_columns = 2;
  plan.rows_per_block = 16;
  plan.code_words = 1;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 4);
  plan.prepack_x = 1;  // its ring has one warp barrier
  expect_every_barrier_needed(op, plan, 5);
  expect_waits_for_chunks(op, plan, "x_.ring().await();");
}

TEST(Barriers, OfWarpsThatMakeBytesOfXAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.weights, true);
  LinearInt8Mma plan{.threads = 192, .outputs_per_warp = 16, .chunk_columns = 256};
  plan.warps_along_columns = 2;
  plan.producer_warps = 2;
  plan.rows_per_block = 16;
  plan.code_words = 1;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 5);
  for (const char* const wait : {"x_.ring().await();", "[this] { ring_.await_free(); }"}) {
    const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
    const std::string fault = report_of(right, op, plan, wait, wait[0] == '[' ? "[] {}" : "");
    EXPECT_NE(fault.find(": race at "), std::string::npos) << wait << ": " << fault;
  }
}

TEST(Barriers, OfGemmByBytegroupsAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.weights, true);
  LinearInt8Wgmma plan{.threads = 128};
  plan.code_words = 1;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 3);
  expect_waits_for_chunks(op, plan, "ring_.await();");
  plan.splits = 2;
  plan.combine = Combine::cluster;
  expect_every_barrier_needed(op, plan, 6);
  plan.prepack_x = 0;
  expect_every_barrier_needed(op, plan, 4);
}

// Sums in the shared memory of a cluster's blocks: no block reads what is not stored yet, or
// another block's part.
TEST(Barriers, OfClustersAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 512;  // so that codebooks are switched
  LinearWgmmaLargeM rows{.threads = 128, .chunk_columns = 256, .splits = 3};
  rows.combine = Combine::cluster;
  rows.rows_per_block = 16;
  rows.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, rows, 8);
  LinearWgmma plan{.threads = 128, .chunk_columns = 256, .splits = 2};
  plan.combine = Combine::cluster;
  plan.rows_per_block = 16;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 6);

  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string late = report_of(
      right, op, plan, "leave_cluster();\n  }",
      "begin();\n    if (thread_index() == 0) store(0, 0, 0.0f);\n    leave_cluster();\n  }");
  EXPECT_NE(late.find("load_peer of 16 bytes"), std::string::npos) << late;
  EXPECT_NE(late.find("put a sync_cluster between them"), std::string::npos) << late;
  const std::string beyond =
      report_of(right, op, plan, "load_peer(sums, block)", "load_peer(sums, block + 1)");
  EXPECT_NE(beyond.find("from block 2 of a cluster of 2"), std::string::npos) << beyond;
  const LinearData data = make_linear_data(op, HardInput{.seed = 3});
  const Fault faults[] = {{"load_peer(sums, block)", "load_peer(sums, 0)"},
                          {"(warp() * kBlocks + Work::split()) * 32", "warp() * kBlocks * 32"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference_linear(data), faulty.run(data), op.dtype);
  });
}

TEST(Barriers, OfGemmByRowgroupsAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 512;  // so that codebooks are switched
  LinearWgmmaLargeM plan{.threads = 128, .chunk_columns = 256};
  plan.rows_per_block = 256;  // pieces of few steps
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(op, plan, 5);
  // Warpgroups that share columns store their sums over the last pieces of a split.
  op.shape.in_features = 1536;
  plan.threads = 256;
  plan.outputs_per_warp = 32;
  plan.groups_along_columns = 2;
  plan.rows_per_block = 128;
  plan.splits = 2;
  plan.combine = Combine::cluster;
  EXPECT_TRUE(check(plan, op, find_gpu("h200")).ok);
  expect_every_barrier_needed(op, plan, 10);
  // Without the pre-pass the sums take the place of all of x.
  op.shape.out_features = 200;  // so that both blocks load from each other
  op.shape.in_features = 1024;
  op.weights.group_channels = 256;
  plan.prepack_x = 0;
  plan.rows_per_block = 64;
  plan.outputs_per_warp = 64;
  EXPECT_TRUE(check(plan, op, find_gpu("h200")).ok);
  expect_every_barrier_needed(op, plan, 8, "warpgroup_wait<kSets - 1>();");
}

TEST(Barriers, OfGemmByWarpGroupsAreAllNeeded) {
  Gemm op;
  op.shape = {.rows = 9, .out_features = 40, .in_features = 2048};
  op.weights = {.vector_size = 8, .index_bits = 8, .scope = Scope::channel_group};
  op.weights.group_channels = 512;  // so that codebooks are switched
  const Problem problem = op;
  LinearWgmma plan{.threads = 128};
  plan.rows_per_block = 16;
  plan.chunk_columns = 256;
  plan.codebook = all_shared(op.weights.entries());
  expect_every_barrier_needed(problem, plan, 3);
  plan.prefetch_steps = 1;  // also waits for all products once per run
  expect_every_barrier_needed(problem, plan, 2, "warpgroup_wait<kSets - 1>();");
}

}  // namespace
}  // namespace vqgen::test

// Every barrier of the attention kernels is needed, and the race checker knows: without any one of
// them, or without a wait for copies, it reports a race.
#include <gtest/gtest.h>

#include <string>

#include "core/profiles.h"
#include "tests/klt_runs.h"
#include "tests/sweep/barriers.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

void expect_every_barrier_of_attention_needed(const Plan& like, std::size_t barriers,
                                              int splits = 1) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300 * splits};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  with_integers(op.keys,
                std::holds_alternative<AttentionMma>(like));  // one barrier waits for their scales
  const Problem problem = op;
  Plan plan = rules_plan(like, problem, find_gpu("h200"));
  ASSERT_TRUE(change_own(
      plan, [splits](auto& own) requires requires { own.splits; } {
        own.splits = splits;
        own.threads = 128;
      }));
  expect_every_barrier_needed(problem, plan, barriers);
}

TEST(Barriers, OfAttentionByLanesAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionSimt{}, 7);
}
TEST(Barriers, OfABasisAreAllNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 8, .kv_heads = 1, .head_dim = 128, .tokens = 300};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  op.keys.center = op.keys.klt = op.values.center = op.values.klt = true;
  auto plan = rules_plan<AttentionSimt>(op, find_gpu("h200"));
  plan.splits = 1;
  plan.threads = 128;
  expect_every_barrier_needed(op, plan, 10);
}
TEST(Barriers, OfAttentionByFragmentsAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionMma{}, 5);
}
TEST(Barriers, OfBlocksThatShareSequencesAreAllNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 3, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionMma>(op, find_gpu("h200"));
  plan.threads = 128;
  plan.splits = 2;
  plan.schedule = Schedule::balanced;
  plan.combine = Combine::last_block;
  expect_every_barrier_needed(op, plan, 7);
}
// 20 splits make two groups.
TEST(Barriers, OfTeamsThatMergeAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionMma{}, 6, 20);
}
TEST(Barriers, OfAttentionByTablesAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionLut{}, 8);
}
TEST(Barriers, OfAttentionByChannelsAreAllNeeded) {
  expect_every_barrier_of_attention_needed(AttentionChannels{}, 7);
}

AttentionDecode attention_of_integers() {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300};
  op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::tensor};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::tensor};
  with_integers(op.keys, true);
  with_integers(op.values, true);
  return op;
}

TEST(Barriers, OfAttentionByBytesAreAllNeeded) {
  AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
  AttentionDecode op = attention_of_integers();
  expect_every_barrier_needed(op, plan, 7);
  // Each split has at least four rounds: in the first, the maximum's barrier orders all accesses.
  op.shape.tokens = 600;
  plan.splits = 2;
  plan.combine = Combine::last_block;
  expect_every_barrier_needed(op, plan, 9);
}

// Each warp has three tiles of raw tokens.
TEST(Barriers, OfAttentionByBytesWithRawTokensAreAllNeeded) {
  AttentionDecode op = attention_of_integers();
  op.shape.recent_tokens = 40;
  op.shape.sinks = 3;
  const AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
  expect_every_barrier_needed(op, plan, 9);
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string said = report_of(right, op, plan, "copy_async_wait<1>();", ";");
  EXPECT_NE(said.find("copy_async of 16 bytes"), std::string::npos) << said;
}

// Values in parts add raw tokens to what other lanes have stored of codes. Kernels
// of a basis have one barrier.
TEST(Barriers, OfAttentionByBytesInPartsAreAllNeeded) {
  AttentionDecode op = attention_of_integers();
  op.keys = op.values = klt_of_three_runs();
  op.shape.head_dim = 128;
  op.shape.recent_tokens = 40;
  op.shape.sinks = 3;
  op.shape.query_heads = 8;
  AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
  expect_every_barrier_needed(op, plan, 13);
  // The kernel that takes results out of the basis merges splits.
  op.shape.tokens = 600;
  plan.splits = 2;
  expect_every_barrier_needed(op, plan, 13);
  // Blocks rotate queries and results.
  plan.fused_basis = 1;
  expect_every_barrier_needed(op, plan, 13);
}

// The first piece of a block ends before the second begins.
TEST(Barriers, OfAttentionByBytesOfSeveralSequencesAreAllNeeded) {
  AttentionDecode op = attention_of_integers();
  op.shape.batch = 3;
  AttentionInt8Mma plan{.threads = 64, .splits = 2, .heads_per_block = 4, .pipeline_stages = 2};
  plan.schedule = Schedule::balanced;
  plan.combine = Combine::last_block;
  expect_every_barrier_needed(op, plan, 10);
}

TEST(Barriers, OfAttentionByBytesInPagesAreAllNeeded) {
  AttentionDecode op = attention_of_integers();
  op.shape.page_tokens = 16;
  const AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
  expect_every_barrier_needed(op, plan, 7);
}

// Warps copy codes: they must not read them before they have waited for their copies (one warp
// copies the first round for all), nor overwrite codes that are still to be read.
TEST(Barriers, OfRoundsOfCodesAreAllNeeded) {
  for (const int page_tokens : {0, 16}) {
    SCOPED_TRACE(page_tokens);
    AttentionDecode op = attention_of_integers();
    op.shape.page_tokens = page_tokens;
    const AttentionInt8Mma plan{.threads = 64, .heads_per_block = 4, .pipeline_stages = 2};
    const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
    for (const auto& [place, instead] :
         {std::pair{"copy_async_wait<kPlaces - 1>();", ";"},
          std::pair{"copy_async_wait<kPlaces - 2>();", ";"},
          std::pair{"copy_async_wait<kPlaces - 2>();", "copy_async_wait<kPlaces - 1>();"},
          std::pair{"given_ = following(given_);", ";"},
          std::pair{"given_ = 0;  // bytes", "given_ = kRoundBytes;  // bytes"},
          std::pair{"copy_step(place, warp(), next_", "copy_step(place, 0, next_"}}) {
      const std::string said = report_of(right, op, plan, place, instead);
      EXPECT_NE(said.find("copy_async of 16 bytes"), std::string::npos) << said << " of " << place;
    }
  }
}

// With one table in flight all barriers exist; with two, each round has a wait for the copies of
// the previous one.
TEST(Barriers, OfAttentionByBinsAreAllNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 1,
              .query_heads = 4,
              .kv_heads = 1,
              .head_dim = 64,
              .tokens = 300,
              .recent_tokens = 40};
  op.keys = {.vector_size = 64, .index_bits = 12, .num_codebooks = 6, .scope = Scope::tensor};
  op.values = {.vector_size = 64, .index_bits = 6, .scope = Scope::tensor};
  auto plan = rules_plan<AttentionHistogram>(op, find_gpu("h200"));
  plan.threads = 64;
  plan.tokens_per_thread = 8;
  plan.tables_in_flight = 1;
  expect_every_barrier_needed(op, plan, 9);
  plan.tables_in_flight = 2;
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  for (const char* place : {"sync_block();  // the table that", "copy_async_wait<0>();"}) {
    const std::string report = report_of(right, op, plan, place, "//");
    EXPECT_NE(report.find(": race at "), std::string::npos) << place << ": " << report;
  }
}

// After a part whose tables are in global memory, the next part's first table takes a buffer that
// an earlier part may still read.
TEST(Barriers, OfTablesBehindThoseInGlobalMemoryAreNeeded) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 96, .tokens = 300};
  op.keys = three_parts(wide(32, 3, 5), wide(32, 2, 7), wide(32, 3, 5));
  op.values = wide(32, 1, 6);
  auto plan = rules_plan<AttentionHistogram>(op, find_gpu("h200"));
  plan.threads = 64;
  plan.tokens_per_thread = 8;
  plan.tables_in_flight = 2;
  plan.shared_entries = 32;
  const Verdict verdict = check(plan, op, find_gpu("h200"));
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  const std::string report = report_of(right, op, plan, "sync_block();  // a part before", "//");
  EXPECT_NE(report.find(": race at "), std::string::npos) << report;
}

}  // namespace
}  // namespace vqgen::test

// Attention by mma if eight lanes cannot share a row of values evenly: 96 channels in sub-vectors
// of 8 are 16 channels for each of six lanes, and the other lanes' sums are discarded.
#include <gtest/gtest.h>

#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct Case {
  const char* name;
  void (*change)(AttentionDecode& op, AttentionMma& plan);
};

AttentionDecode problem() {
  AttentionDecode op;
  op.shape = {.batch = 3, .query_heads = 6, .kv_heads = 2, .head_dim = 96, .tokens = 203};
  op.keys = {.vector_size = 4, .index_bits = 7, .scope = Scope::head};
  op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 8, .scope = Scope::head};
  return op;
}

class ValueLanes : public SweepTest<testing::TestWithParam<Case>> {};

TEST_P(ValueLanes, AreSixOf96Channels) {
  AttentionDecode op = problem();
  AttentionMma plan;
  plan.threads = 64;
  plan.splits = 2;
  plan.heads_per_block = 3;
  GetParam().change(op, plan);
  const Verdict verdict = check(plan, op, sweep_gpu());
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  std::uint64_t seed = 31;
  for (const LengthPattern lengths : {LengthPattern::full, LengthPattern::ragged}) {
    SweepCase one;
    one.name = GetParam().name;
    one.problem = op;
    one.plan = plan;
    one.input.seed = seed++;
    one.input.lengths = lengths;
    EXPECT_EQ(failure_of(one, *sweep_backend(seed), sweep_gpu()), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ValueLanes,
                         testing::Values(Case{"plain", [](AttentionDecode&, AttentionMma&) {}},
                                         Case{"bf16, stages and groups of channels",
                                              [](AttentionDecode& op, AttentionMma& plan) {
                                                op.dtype = DType::bf16;
                                                op.values.num_codebooks = 2;
                                                op.values.index_bits =
                                                    5;  // a lane's share begins within a word
                                                op.values.scope = Scope::channel_group;
                                                op.values.group_channels = 8;
                                                plan.step_tokens = 8;
                                              }},
                                         Case{"integers and two quads in pairs",
                                              [](AttentionDecode& op, AttentionMma& plan) {
                                                op.shape.query_heads = 16;
                                                plan.heads_per_block = 8;
                                                with_integers(op.keys, true);
                                                with_integers(op.values, true);
                                              }},
                                         Case{"raw tokens and rows in groups",
                                              [](AttentionDecode& op, AttentionMma&) {
                                                op.shape.recent_tokens = 30;
                                                op.shape.sinks = 3;
                                                op.values.layout = {4, 1};
                                              }},
                                         Case{"pages and several query tokens",
                                              [](AttentionDecode& op, AttentionMma& plan) {
                                                op.shape.page_tokens = 32;
                                                op.shape.query_tokens = 3;
                                                plan.heads_per_block = 9;
                                              }},
                                         Case{"a ring of codes",
                                              [](AttentionDecode& op, AttentionMma& plan) {
                                                op.shape.page_tokens = 32;
                                                op.keys.vector_size = 2;
                                                op.keys.index_bits = 8;
                                                op.values.num_codebooks = 4;
                                                plan.code_words = 4;
                                                plan.code_stages = 3;
                                              }}),
                         [](const auto& each) { return std::to_string(each.index); });

// Stores by lanes beyond the last would reach the next head's row, and for the last head leave the
// block's memory.
TEST(ValueLanesFault, StoresOfLanesWithoutChannelsAreFound) {
  const AttentionDecode op = problem();
  AttentionMma plan;
  plan.threads = 64;
  plan.heads_per_block = 3;
  const AttentionData data = make_attention_data(op, {.seed = 5});
  const auto backend = test_host({});
  const auto run = [&](const KernelSource& source) {
    const auto kernel = backend->load(backend->compile(source), source);
    execute(*backend, *kernel, source, op, plan, data);
  };
  const KernelSource right = generate(op, plan, find_gpu("h200"), Machine::host, {});
  run(right);
  const KernelSource wrong =
      with_fault(right, "if (kLanes < 8 && lane_group() >= kLanes) continue;", "");
  EXPECT_NE(message_of([&] { run(wrong); }, ErrorKind::device).find("warp_softmax.cuh"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen::test

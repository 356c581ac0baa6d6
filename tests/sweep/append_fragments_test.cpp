// kv_append by fragments: the bits of append_lanes on what estimates by tensor cores decide worst,
// and kernels that trust estimates too far, which such input has to find.
#include <gtest/gtest.h>

#include "tests/sweep/hard_append.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

KvAppend hard_problem(DType dtype) {
  KvAppend op;
  op.dtype = dtype;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 80,
              .new_tokens = 37,
              .window = 4,
              .sinks = 2};
  return op;
}

std::vector<KvAppend> hard_problems() {
  std::vector<KvAppend> problems;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KvAppend op = hard_problem(dtype);
    op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    op.values = {.vector_size = 8, .index_bits = 10, .scope = Scope::tensor};
    problems.push_back(op);
    if (dtype == DType::bf16) continue;
    op.keys = {.vector_size = 2, .index_bits = 8, .scope = Scope::channel_group};
    op.values = {.vector_size = 4, .index_bits = 6, .residuals = 2, .scope = Scope::channel_group};
    op.values.stage_scales = true;
    problems.push_back(op);
    op.keys = {.vector_size = 8, .index_bits = 3, .residuals = 3, .scope = Scope::head};
    op.keys.hadamard = op.keys.smooth = op.keys.stage_scales = true;
    op.values = {.vector_size = 2, .index_bits = 5, .scope = Scope::head};
    op.shape.page_tokens = 16;
    problems.push_back(op);
  }
  return problems;
}

class AppendByFragments : public testing::Test {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
};

TEST_F(AppendByFragments, HardInputHasTheBitsOfLanes) {
  for (const KvAppend& op : hard_problems()) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    expect_bits_of_lanes(op, {AppendFragments{.tokens_per_block = 37},
                              AppendFragments{.threads = 64, .splits = 4, .tokens_per_block = 5}});
  }
}

// One place of the kernel's text changed; some hard input tells.
TEST_F(AppendByFragments, HardInputFindsKernelsThatTrustEstimates) {
  const KvAppend op = hard_problems().front();
  const Plan plan = rules_plan(AppendFragments{}, op, sweep_gpu());
  const AppendFault faults[] = {
      {"least.other > least.best + margin", "true"},
      {"least.other > least.best + margin", "least.other > least.best"},
      {"low -= to_float", "low -= 0.0f * to_float"},
      {"if (candidate < distance) {", "if (candidate <= distance) {"},
      {"larger(keeps.best, best)", "infinity()"},
  };
  expect_faults_found(op, plan, faults);
}

}  // namespace
}  // namespace vqgen::test

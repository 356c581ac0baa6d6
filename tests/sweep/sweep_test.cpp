// The sweep: every op over all its axes against the double reference. On the host by default; with
// VQGEN_TEST_BACKEND=cuda on the GPU, with =race on the host under the race checker. In the asan
// preset kernels are compiled with sanitizers.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/sweep/harness.h"

namespace vqgen::test {
namespace {

constexpr std::uint64_t kSeed = 20261120;
constexpr std::size_t kShards = 6;  // so that ctest runs them side by side

class Sweep : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }

  // Runs this shard's share of `cases`, and says how many that were.
  void run_share(const std::vector<SweepCase>& cases) {
    const GpuSpec gpu = sweep_gpu();
    std::size_t ran = 0;
    std::size_t dropped = 0;
    for (std::size_t i = GetParam(); i < cases.size(); i += kShards) {
      const std::string failure = failure_of(cases[i], *sweep_backend(i / kShards), gpu);
      EXPECT_EQ(failure, "");
      ++ran;
      dropped += cases[i].override_dropped ? 1u : 0u;
    }
    std::printf("seed %llu: %zu of %zu cases, %zu with the default plan for want of room\n",
                static_cast<unsigned long long>(kSeed), ran, cases.size(), dropped);
    EXPECT_EQ(ran, (cases.size() + kShards - 1 - GetParam()) / kShards);
  }
};

TEST_P(Sweep, AttentionPairwise) { run_share(attention_pairwise(sweep_gpu(), kSeed).cases); }
TEST_P(Sweep, AttentionProduct) { run_share(attention_product(sweep_gpu(), kSeed)); }
TEST_P(Sweep, GemvPairwise) { run_share(gemv_pairwise(sweep_gpu(), kSeed).cases); }
TEST_P(Sweep, GemmPairwise) { run_share(gemm_pairwise(sweep_gpu(), kSeed).cases); }
TEST_P(Sweep, GemvProduct) { run_share(gemv_product(sweep_gpu(), kSeed)); }

INSTANTIATE_TEST_SUITE_P(Shard, Sweep, testing::Range(std::size_t{0}, kShards));

TEST(SweepCover, EveryPairOfValuesOccurs) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  for (const SweepCases& sweep :
       {attention_pairwise(sweep_gpu(), kSeed), gemv_pairwise(sweep_gpu(), kSeed),
        gemm_pairwise(sweep_gpu(), kSeed)}) {
    EXPECT_EQ(sweep.uncovered, 0u);
    EXPECT_GT(sweep.pairs, 1000u);
    EXPECT_GE(sweep.cases.size(), 90u);
    std::printf("%zu cases cover %zu pairs\n", sweep.cases.size(), sweep.pairs);
  }
  // Not only drawn, but taken: check() drops what it refuses.
  for (const LinearFusion fusion :
       {LinearFusion::permute, LinearFusion::registers, LinearFusion::shared}) {
    std::size_t cases = 0;
    for (const SweepCases& sweep :
         {gemv_pairwise(sweep_gpu(), kSeed), gemm_pairwise(sweep_gpu(), kSeed)}) {
      for (const SweepCase& each : sweep.cases) {
        const auto& plan = std::get<LinearPlan>(each.plan);
        cases += plan.dataflow == LinearDataflow::fragments && plan.fusion == fusion ? 1u : 0u;
      }
    }
    std::printf("%zu cases of fusion %s\n", cases, std::string(enum_name(fusion)).c_str());
    EXPECT_GE(cases, 20u);
  }
  EXPECT_EQ(attention_product(sweep_gpu(), kSeed).size(), (15u * 3 + 1) * 4);
  EXPECT_EQ(gemv_product(sweep_gpu(), kSeed).size(), (15u * 3 + 1) * 4);
}

}  // namespace
}  // namespace vqgen::test

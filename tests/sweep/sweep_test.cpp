// The sweep: every op over all its axes against the double reference. It runs on the host; with
// VQGEN_TEST_BACKEND=cuda on the GPU, with =race on the host under the race checker. The asan
// preset compiles kernels with sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "heuristics/check.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {
namespace {

// The seed of the cases; fixed unless the variable gives another.
std::uint64_t sweep_seed() {
  static const std::uint64_t seed = number_of("VQGEN_SWEEP_SEED", 20261122, UINT64_MAX);
  return seed;
}

// True if the shard's case of this number runs. Each third includes all lane orders, which follow
// the number's remainder.
bool runs(std::size_t number, std::uint64_t third) {
  return third == 0 || (number + number / 3) % 3 == third - 1;
}
constexpr std::size_t kShards = 6;  // so that ctest runs them side by side

class Sweep : public SweepTest<testing::TestWithParam<std::size_t>> {
 protected:
  // Runs this shard's share of `cases`, and prints how many there were.
  void run_share(const std::vector<SweepCase>& cases) {
    const GpuSpec gpu = sweep_gpu();
    std::size_t ran = 0;
    std::size_t dropped = 0;
    std::size_t other_dataflow = 0;
    for (std::size_t i = GetParam(), number = 0; i < cases.size(); i += kShards, ++number) {
      if (!runs(number, sweep_third())) continue;
      const std::string failure = failure_of(cases[i], *sweep_backend(number), gpu);
      EXPECT_EQ(failure, "") << "repeat with VQGEN_SWEEP_SEED=" << sweep_seed();
      ++ran;
      dropped += cases[i].override_dropped ? 1u : 0u;
      other_dataflow += cases[i].dataflow_dropped ? 1u : 0u;
    }
    EXPECT_TRUE(ran > 0 || cases.size() < 3 * kShards);
    std::printf(
        "VQGEN_SWEEP_SEED=%llu VQGEN_SWEEP_THIRD=%llu: %zu of %zu cases, %zu with the default plan "
        "for want of room, %zu in dataflow simt for want of room\n",
        static_cast<unsigned long long>(sweep_seed()),
        static_cast<unsigned long long>(sweep_third()), ran, cases.size(), dropped, other_dataflow);
  }
};

TEST_P(Sweep, AttentionPairwise) { run_share(attention_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, AttentionInt8MmaPairwise) {
  run_share(attention_int8_mma_pairwise(sweep_gpu(), sweep_seed()).cases);
}
TEST_P(Sweep, AttentionProduct) { run_share(attention_product(sweep_gpu(), sweep_seed())); }
TEST_P(Sweep, AppendPairwise) { run_share(append_pairwise(sweep_seed()).cases); }
TEST_P(Sweep, AppendGemmPairwise) { run_share(append_gemm_pairwise(sweep_seed()).cases); }
TEST_P(Sweep, DecodePairwise) { run_share(dequantize_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, ScalarPairwise) { run_share(scalar_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, MergePairwise) { run_share(merge_pairwise(sweep_seed()).cases); }
TEST_P(Sweep, MatrixPairwise) { run_share(matrix_pairwise(sweep_seed()).cases); }
TEST_P(Sweep, WeightRowsPairwise) {
  run_share(weight_rows_pairwise(sweep_gpu(), sweep_seed()).cases);
}
TEST_P(Sweep, LinearPairwise) { run_share(linear_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, BytesPairwise) { run_share(bytes_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, ExpertsPairwise) { run_share(experts_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, EpiloguePairwise) { run_share(epilogue_pairwise(sweep_gpu(), sweep_seed()).cases); }
TEST_P(Sweep, GemvProduct) { run_share(gemv_product(sweep_gpu(), sweep_seed())); }
TEST_P(Sweep, SlicesProduct) { run_share(slices_product(sweep_gpu(), sweep_seed())); }

INSTANTIATE_TEST_SUITE_P(Shard, Sweep, testing::Range(std::size_t{0}, kShards));

TEST(SweepThirds, AreAllTheCasesAndHaveAllLaneOrders) {
  std::map<std::pair<std::uint64_t, std::size_t>, int> occurrences;  // by third and lane order
  for (std::size_t number = 0; number < 9; ++number) {
    EXPECT_TRUE(runs(number, 0));
    int thirds = 0;
    for (const std::uint64_t third : {1u, 2u, 3u}) {
      if (!runs(number, third)) continue;
      ++thirds;
      ++occurrences[{third, number % 3}];
    }
    EXPECT_EQ(thirds, 1) << number;
  }
  EXPECT_EQ(occurrences.size(), 9u);
}

TEST(SweepCover, EveryPairOfValuesOccurs) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  const SweepCases attention = attention_pairwise(sweep_gpu(), sweep_seed());
  const SweepCases linear = linear_pairwise(sweep_gpu(), sweep_seed());
  const SweepCases append = append_pairwise(sweep_seed());
  const SweepCases products = append_gemm_pairwise(sweep_seed());
  const SweepCases bytes = bytes_pairwise(sweep_gpu(), sweep_seed());
  const SweepCases attention_int8_mma = attention_int8_mma_pairwise(sweep_gpu(), sweep_seed());
  for (const auto& [name, sweep] : std::map<std::string, SweepCases>{
           {"attention", attention},
           {"attention by bytes", attention_int8_mma},
           {"linear", linear},
           {"append", append},
           {"append by products", products},
           {"int8_mma", bytes},
           {"decode", dequantize_pairwise(sweep_gpu(), sweep_seed())},
           {"scalar", scalar_pairwise(sweep_gpu(), sweep_seed())},
           {"experts", experts_pairwise(sweep_gpu(), sweep_seed())},
           {"epilogues", epilogue_pairwise(sweep_gpu(), sweep_seed())},
           {"merge", merge_pairwise(sweep_seed())},
           {"matrix", matrix_pairwise(sweep_seed())},
           {"weight rows", weight_rows_pairwise(sweep_gpu(), sweep_seed())}}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(sweep.uncovered, 0u);
    EXPECT_GT(sweep.pairs, 200u);
    std::size_t dropped = 0;
    for (const SweepCase& each : sweep.cases) {
      const Verdict verdict = check(each.plan, each.problem, sweep_gpu());
      EXPECT_TRUE(verdict.ok) << verdict.reason;
      dropped += each.override_dropped || each.dataflow_dropped ? 1u : 0u;
    }
    std::printf("%s: %zu cases cover %zu pairs, %zu lose plan fields\n", name.c_str(),
                sweep.cases.size(), sweep.pairs, dropped);
    EXPECT_LE(dropped * 4, sweep.cases.size());
  }
  // The cases must be taken, not only drawn: check() drops what it refuses.
  for (const LinearFusion fusion :
       {LinearFusion::permute, LinearFusion::registers, LinearFusion::shared}) {
    std::size_t cases = 0;
    for (const SweepCase& each : linear.cases) {
      const auto* plan = std::get_if<LinearMma>(&each.plan);
      cases += plan != nullptr && plan->fusion == fusion ? 1u : 0u;
    }
    std::printf("%zu cases of fusion %s\n", cases, std::string(enum_name(fusion)).c_str());
    EXPECT_GE(cases, 15u);
  }
  std::vector<SweepCase> all = gemv_product(sweep_gpu(), sweep_seed());
  const std::vector<SweepCase> sliced = slices_product(sweep_gpu(), sweep_seed());
  all.insert(all.end(), sliced.begin(), sliced.end());
  for (const SweepCases& sweep : {attention, attention_int8_mma, linear, append, products, bytes}) {
    all.insert(all.end(), sweep.cases.begin(), sweep.cases.end());
  }
  std::map<std::string_view, int> dataflows;
  for (const SweepCase& each : all) ++dataflows[kernel_name(each.plan)];
  for_each_dataflow([&]<class P>(const P&) {
    // These dataflows serve ops that are not here, or formats that bins_test.cpp covers.
    if (std::is_same_v<P, DequantizeSimt> || std::is_same_v<P, MergeSimt> ||
        std::is_same_v<P, ScalarForms> || std::is_same_v<P, WeightsSimt> ||
        std::is_same_v<P, AttentionHistogram>) {
      return;
    }
    EXPECT_GE(dataflows[P::kName], (std::is_same_v<OpOf<P>, Linear> ? 20 : 12)) << P::kName;
    std::printf("%d cases of %s\n", dataflows[P::kName], P::kName);
  });
  for (const SweepCases& sweep : {attention, linear}) {
    const auto by_last_block =
        std::count_if(sweep.cases.begin(), sweep.cases.end(),
                      [](const SweepCase& each) { return merges_by_last_block(each.plan); });
    EXPECT_GE(by_last_block, 10);
    std::printf("%td cases whose last block merges\n", by_last_block);
  }
  EXPECT_EQ(attention_product(sweep_gpu(), sweep_seed()).size(), (15u * 3 + 1) * 4);
  EXPECT_EQ(gemv_product(sweep_gpu(), sweep_seed()).size(), (15u * 3 + 1) * 4);
}

}  // namespace
}  // namespace vqgen::test

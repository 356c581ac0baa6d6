// Splits summed by a cluster of blocks give the bits of the combine kernel and of the last block,
// whatever a block's shape and share, in every order of lanes and blocks.
#include <gtest/gtest.h>

#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Cluster : public testing::Test {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    if (!sweep_gpu().warpgroup_products) GTEST_SKIP() << "no products of warp groups";
  }

  // 33 rows and 300 outputs, which fill no block; 2080 columns.
  static Gemm product(bool bytes) {
    Gemm op;
    op.shape = {.rows = 33, .out_features = 300, .in_features = 2080};
    op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2, .output_scales = true};
    if (bytes) with_integers(op.weights, true);
    op.weights.common_scale = bytes;
    return op;
  }
};

template <class P>
std::vector<std::uint16_t> run_combined(Backend& backend, const Gemm& op, P plan, Combine combine,
                                        const LinearData& data) {
  plan.combine = combine;
  const Verdict verdict = check(plan, op, sweep_gpu());
  EXPECT_TRUE(verdict.ok) << verdict.reason;
  return Kernel(backend, op, plan, sweep_gpu()).run(data);
}

template <class P>
void expect_same_products(const Gemm& op, const P& plan, int seed) {
  SCOPED_TRACE(to_json(Plan(plan)).dump());
  const LinearData data = make_linear_data(op, {.seed = static_cast<std::uint64_t>(seed)});
  Backend& first = *sweep_backend();
  const auto expected = run_combined(first, op, plan, Combine::kernel, data);
  EXPECT_EQ(expected, run_combined(first, op, plan, Combine::last_block, data));
  for (const std::size_t order : {0u, 1u, 2u}) {
    EXPECT_EQ(expected, run_combined(*sweep_backend(order), op, plan, Combine::cluster, data))
        << order;
  }
}

// 9 chunks: with 5 and 8 splits some blocks have none.
TEST_F(Cluster, OfBytegroupsGivesTheBitsOfTheOthers) {
  const Gemm op = product(true);
  LinearInt8Wgmma plan{.threads = 128, .code_words = 1, .codebook = all_shared(256)};
  for (const int splits : a_third({2, 3, 5, 8})) {
    plan.splits = splits;
    plan.rows_per_block = splits == 3 ? 64 : 16;
    plan.threads = splits == 2 ? 256 : 128;
    expect_same_products(op, plan, 50 + splits);
  }
}

TEST_F(Cluster, OfRowgroupsGivesTheBitsOfTheOthers) {
  for (const bool bytes : {false, true}) {
    Gemm op = product(bytes);
    op.weights.output_scales = bytes;
    op.dtype = bytes ? DType::f16 : DType::bf16;
    op.weights.layout.rows = 4;
    LinearWgmmaLargeM plan{.threads = 128, .code_words = 1, .codebook = all_shared(256)};
    plan.byte_sums = bytes ? 1 : 0;
    for (const int splits : a_third({2, 5, 7})) {
      plan.splits = splits;
      plan.outputs_per_warp = splits == 5 ? 32 : 16;
      plan.rows_per_block = splits == 7 ? 8 : 64;
      expect_same_products(op, plan, 60 + splits);
    }
  }
}

// A block's outputs are not a multiple of its threads: 112 for 7 warps, 48 per warp.
TEST_F(Cluster, OfWarpgroupsGivesTheBitsOfTheOthers) {
  const Gemm op = product(false);
  LinearWgmma plan{.threads = 256, .chunk_columns = 256, .splits = 4, .rows_per_block = 16};
  plan.codebook = all_shared(256);
  LinearWgmma fetching = plan;
  fetching.fetch_only_warps = fetching.prefetch_steps = 1;
  LinearWgmma wide = plan;
  wide.prefetch_steps = 1;
  wide.threads = 128;
  wide.outputs_per_warp = 48;
  wide.splits = 6;
  for (const LinearWgmma& each : a_third({plan, fetching, wide})) {
    expect_same_products(op, each, 70 + each.splits + each.fetch_only_warps);
  }
}

// Clusters that really run at once, in the host's threads.
TEST_F(Cluster, OnSeveralThreadsGivesTheSameBits) {
  const auto threads = test_host({.order = LaneOrder::random, .seed = 3, .threads = 4});
  const Gemm op = product(true);
  const LinearInt8Wgmma plan{
      .threads = 128, .splits = 4, .code_words = 1, .codebook = all_shared(256)};
  const LinearData data = make_linear_data(op, {.seed = 80});
  const auto expected = run_combined(*threads, op, plan, Combine::kernel, data);
  for (int again = 0; again < 5; ++again) {
    EXPECT_EQ(expected, run_combined(*threads, op, plan, Combine::cluster, data));
  }
}

}  // namespace
}  // namespace vqgen::test

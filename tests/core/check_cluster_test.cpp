// Requirements of summing splits in clusters of blocks: the dataflow, the GPU, 2 to 8 splits, and
// room for the sums of a block.
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

Gemm gemm() {
  Gemm op;
  op.shape = {.rows = 128, .out_features = 4096, .in_features = 4096};
  op.weights = find_format("aqlm-2x8i8", "test");
  return op;
}

template <class P>
Verdict judged(int splits, const char* gpu = "h100", P plan = {}) {
  plan.combine = Combine::cluster;
  plan.splits = splits;
  plan.codebook = all_shared(256);
  return check(plan, gemm(), find_gpu(gpu));
}

template <class P>
void expect_two_to_eight_splits() {
  for (const int splits : {2, 3, 8}) expect_ok(judged<P>(splits));
  expect_refused(judged<P>(1), {"combine cluster takes 2 to 8 splits, not 1", "use kernel"});
  expect_refused(judged<P>(9, "h100", P{.threads = 128, .chunk_columns = 256}),
                 {"combine cluster takes 2 to 8 splits, not 9", "use fewer"});
  expect_refused(judged<P>(2, "a100"), {"no wgmma"});
}

TEST(CheckCluster, TakesTwoToEightSplits) {
  expect_two_to_eight_splits<LinearInt8Wgmma>();
  expect_two_to_eight_splits<LinearWgmmaLargeM>();
  for (const int splits : {2, 4}) {
    expect_ok(judged<LinearWgmma>(splits));
  }
  expect_refused(judged<LinearWgmma>(1), {"combine cluster takes 2 to 8 splits, not 1"});
}

TEST(CheckCluster, NoOtherDataflowHasIt) {
  LinearSimt lanes{.outputs_per_warp = 1, .chunk_columns = 128, .splits = 2};
  lanes.combine = Combine::cluster;
  Gemv op;
  op.shape = {.rows = 1, .out_features = 4096, .in_features = 4096};
  op.weights = find_format("aqlm-2x8", "test");
  expect_refused(
      check(lanes, op, find_gpu("h100")),
      {"combine cluster is of GEMM by dataflow wgmma, wgmma_large_m, int8_mma or int8_wgmma"});
}

// 256 outputs and 256 rows take 260 KB, more than any block has.
TEST(CheckCluster, SumsOfABlockFitItsSharedMemory) {
  LinearWgmmaLargeM plan{.threads = 256, .outputs_per_warp = 16, .splits = 4};
  plan.combine = Combine::cluster;
  plan.rows_per_block = 256;
  plan.codebook = all_shared(256);
  Gemm op = gemm();
  op.shape.rows = 256;
  expect_ok(check(plan, op, find_gpu("h100")));
  GpuSpec small = find_gpu("h100");
  small.shared_bytes_per_block = 133000;
  plan.combine = Combine::kernel;
  plan.rows_per_block = 128;
  plan.threads = 512;
  expect_ok(check(plan, op, find_gpu("h100")));
  plan.combine = Combine::cluster;
  expect_refused(check(plan, op, small),
                 {"the sums of 256 outputs and 128 rows take 133120 bytes", "combine kernel"});
}

// The workspace holds only what the pre-pass hands on, and no kernel follows.
TEST(CheckCluster, CallsHaveNoPartialsAndNoKernelMore) {
  LinearInt8Wgmma plan{.splits = 4};
  plan.rows_per_block = 64;
  const vq::CallShape merged = call_shape(plan, gemm());
  plan.combine = Combine::cluster;
  const vq::CallShape shape = call_shape(plan, gemm());
  EXPECT_EQ(shape.count, 2);
  EXPECT_EQ(merged.count, 3);
  EXPECT_EQ(shape.launches[1].cluster, 4);
  EXPECT_EQ(shape.launches[1].z, 4);
  EXPECT_EQ(shape.workspace_bytes, vq::kCounterBytes + shape.handed_bytes);
  EXPECT_EQ(merged.workspace_bytes - shape.workspace_bytes, 4 * 128 * 4096 * 4);
  EXPECT_EQ(shape.launches[1].shared_bytes, merged.launches[1].shared_bytes);
}

}  // namespace
}  // namespace vqgen

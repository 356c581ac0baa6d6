// Clusters on the host: blocks load from each other's shared memory, in every order of lanes and
// blocks, and wrong use is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/cluster_kernel.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Trial clusters() {
  Trial trial;
  trial.text = test::kClusterText;
  trial.threads = test::kClusterThreads;
  trial.shared_bytes = test::kClusterSharedBytes;
  trial.grid = test::kClusterGrid;
  trial.in = test::cluster_in();
  trial.out_words = test::kClusterWords;
  return trial;
}

Trial clusters_with(const std::string& place, const std::string& instead) {
  Trial trial = clusters();
  const std::size_t at = trial.text.find(place);
  EXPECT_NE(at, std::string::npos) << place;
  trial.text.replace(at, place.size(), instead);
  return trial;
}

constexpr const char* kBeforeLoads = "vq::sync_cluster();\n    for";
constexpr const char* kBeforeStores = "if (round > 0) vq::sync_cluster();";
constexpr const char* kLeave = "vq::leave_cluster();";

TEST(Clusters, LoadFromEachOtherInEveryOrder) {
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) {
      test::judge_cluster(run(clusters(), options));
    }
  }
}

TEST(ClusterFault, NoBlockLoadsFromOneThatMayNotHaveBegun) {
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(
        fault_of(clusters_with(kBeforeLoads, "vq::sync_block();\n    for"), options),
        AllOf(HasSubstr("load_peer of 16 bytes from block ("), HasSubstr("may not have begun"),
              HasSubstr("put a sync_cluster before the loads")));
  }
}

TEST(ClusterFault, NoBlockEndsWhileOthersLoadFromIt) {
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(fault_of(clusters_with(kLeave, ""), options),
                AllOf(HasSubstr("load_peer of 16 bytes from block ("), HasSubstr("has ended"),
                      HasSubstr("let all blocks wait at leave_cluster behind the loads")));
  }
}

TEST(ClusterFault, StoresAndLoadsOfPeersAreARaceWithoutABarrierOfTheCluster) {
  // Before the next stores no barrier says that the other blocks have loaded, or only the block's
  // own does.
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(clusters_with(kBeforeStores, ""), options),
                AllOf(HasSubstr("race at offset"), HasSubstr("load_peer of 16 bytes"),
                      HasSubstr("store_shared of 4 bytes")));
    EXPECT_THAT(fault_of(clusters_with(kBeforeStores, "vq::sync_block();"), options),
                AllOf(HasSubstr("race at offset"), HasSubstr("load_peer of 16 bytes"),
                      HasSubstr("store_shared of 4 bytes"), HasSubstr(" of block ("),
                      HasSubstr("put a sync_cluster between them")));
  }
  // Leaving the cluster orders nothing.
  EXPECT_THAT(fault_of(clusters_with(kBeforeStores, "if (round > 0) vq::leave_cluster();"),
                       {.check_races = true}),
              HasSubstr("put a sync_cluster between them"));
}

TEST(ClusterFault, AllBlocksReachTheSameBarriers) {
  const std::string one = "if (vq::block_z() != 7) ";
  EXPECT_THAT(
      fault_of(clusters_with(kLeave, one + kLeave)),
      AllOf(HasSubstr("block (0,0,4): waits at leave_cluster (trial.cu:"),
            HasSubstr("while block (0,0,7) has ended"), HasSubstr("let all blocks of a cluster")));
  EXPECT_THAT(fault_of(clusters_with(kBeforeStores,
                                     "if (round > 0 && vq::block_z() != 5) "
                                     "vq::sync_cluster(); else if (round > 0) "
                                     "vq::leave_cluster();")),
              HasSubstr("while block (0,0,5) waits at leave_cluster (trial.cu:"));
}

TEST(ClusterFault, AllThreadsReachThem) {
  EXPECT_THAT(fault_of(clusters_with(kLeave, "if (t != 9) vq::leave_cluster();")),
              AllOf(HasSubstr("threads returned before a barrier"), HasSubstr("leave_cluster"),
                    HasSubstr("thread 9 has returned")));
  EXPECT_THAT(
      fault_of(clusters_with(kLeave, "if (t < 32) vq::leave_cluster(); else vq::sync_block();")),
      HasSubstr("threads 0-31 wait at leave_cluster"));
}

TEST(ClusterFault, LoadsAreOfTheClusterAlignedAndInside) {
  EXPECT_THAT(fault_of(clusters_with("peer < 4", "peer < 5")),
              HasSubstr("load_peer of 16 bytes from block 4 of a cluster of 4"));
  EXPECT_THAT(fault_of(clusters_with("(words) + t,", "(words + 1) + t,")),
              AllOf(HasSubstr("load_peer of 16 bytes"), HasSubstr("misaligned")));
  EXPECT_THAT(fault_of(clusters_with("t < 16 && peer", "t < 17 && peer")),
              AllOf(HasSubstr("load_peer of 16 bytes"), HasSubstr("at offset 256 of an arena")));
}

TEST(ClusterFault, GridsHaveWholeClustersThatEveryGpuTakes) {
  Trial part = clusters();
  part.grid.z = 6;
  EXPECT_THAT(fault_of(part), HasSubstr("6 blocks of z are no whole clusters of 4"));
  EXPECT_THAT(fault_of(clusters_with("(trial, 64, 4, Args)", "(trial, 64, 16, Args)")),
              HasSubstr("use clusters of 1 to 8"));
}

// Threads that wait at a cluster barrier when a peer fails are given up, and the next launch is
// sound.
TEST(Clusters, AFaultLeavesNothingBehind) {
  const Trial wrong = clusters_with("peer < 4", "peer < 4u + (block == 15)");
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(fault_of(wrong), HasSubstr("block (1,0,7)"));
    test::judge_cluster(run(clusters()));
  }
}

}  // namespace
}  // namespace vqgen::host_test

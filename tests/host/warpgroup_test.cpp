// Warpgroup products on the host: the layout and its descriptor, right sums in every lane order,
// and reports of wrong use, such as writing shared memory that is still being read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vq/layout/core_matrices.h>

#include <set>

#include "tests/cuda/warpgroup_kernel.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Values from the tables of the PTX ISA: fields of 16 bytes; row n of octet k is at SBO (n / 8) +
// LBO k + 16 (n % 8).
static_assert(vq::core_descriptor(0x2340, 1024, 128) == 0x0000'0008'0040'0234u);
static_assert(vq::core_descriptor(0x3fff0, 0x3fff0, 0x3fff0) == 0x0000'3fff'3fff'3fffu);
static_assert(vq::core_row(vq::core_descriptor(256, 1024, 128), 19, 3) ==
              256 + 3 * 1024 + 2 * 128 + 3 * 16);
static_assert(vq::advanced(vq::core_descriptor(64, 256, 128), 512) ==
              vq::core_descriptor(576, 256, 128));

TEST(CoreMatrices, HoldEveryRowOnce) {
  for (const auto& [octet_bytes, rows_bytes] : {std::pair{24 * 16, 128}, std::pair{128, 4 * 128}}) {
    const vq::u64 cores = vq::core_descriptor(48, octet_bytes, rows_bytes);
    std::set<vq::u32> places;
    for (int row = 0; row < 24; ++row) {
      for (int octet = 0; octet < 4; ++octet) places.insert(vq::core_row(cores, row, octet));
    }
    EXPECT_EQ(places.size(), 24u * 4);
    EXPECT_EQ(*places.begin(), 48u);
    EXPECT_EQ(*places.rbegin(), 48u + (24 * 4 - 1) * 16);
  }
}

Trial trial_of(const test::GroupProduct& product) {
  Trial trial;
  trial.text =
      std::string(test::kWarpgroupText) + "VQ_KERNEL(trial, 256, Args) { " + product.call() + " }";
  trial.threads = test::kGroupThreads;
  trial.shared_bytes = product.shared_bytes();
  trial.in = product.in;
  trial.out_words = product.out_words();
  return trial;
}

TEST(Warpgroup, AgreesWithSumsOfIntegers) {
  for (const test::GroupProduct& product : test::group_products()) {
    if (product.columns != 8 && product.columns != 32 && product.bf16) continue;  // compiles each
    product.judge(run(trial_of(product)));
  }
}

TEST(Warpgroup, GivesTheSameInEveryOrderAndRacesNowhere) {
  for (const test::GroupProduct& product :
       {test::GroupProduct(true, false, 16, true), test::GroupProduct(false, true, 16, true)}) {
    for (const bool check_races : {false, true}) {
      for (const HostOptions& options : all_orders(check_races)) {
        product.judge(run(trial_of(product), options));
      }
    }
  }
}

// The kernel with `from` replaced by `to`.
Trial changed(const std::string& from, const std::string& to) {
  Trial trial = trial_of(test::GroupProduct(false, false, 16, true));
  trial.text.replace(trial.text.find(from), from.size(), to);
  return trial;
}

TEST(WarpgroupFault, ReadsBeforeTheBarrierAreARace) {
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(changed("sync_block();", ""), options),
                AllOf(HasSubstr("race at offset"), HasSubstr("warpgroup_mma of 16 bytes")));
  }
}

// Products read until they are waited for; a barrier alone does not end that.
TEST(WarpgroupFault, StoresToWhatIsStillReadAreARace) {
  const std::string store =
      "sync_block(); store_shared(reinterpret_cast<u32*>(at) + thread_index() % 64 * 4, 0u);";
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(changed("warpgroup_wait<0>();", store + " warpgroup_wait<0>();"), options),
                AllOf(HasSubstr("race at offset"), HasSubstr("still in flight, then store_shared"),
                      HasSubstr("let the group wait for its wgmma, then put a sync_block")));
    EXPECT_THAT(fault_of(changed("warpgroup_wait<0>();",
                                 "warpgroup_wait<1>(); " + store + " warpgroup_wait<0>();"),
                         options),
                HasSubstr("race at offset"));
  }
  const Trial fine = changed("warpgroup_wait<0>();",
                             "warpgroup_wait<0>(); sync_block(); if (thread_index() < 64) "
                             "store_shared(reinterpret_cast<u32*>(at) + thread_index() * 4, 0u);");
  for (const HostOptions& options : all_orders(true)) EXPECT_NO_THROW(run(fine, options));
}

TEST(WarpgroupFault, AGroupThatLacksAThreadIsStuck) {
  const std::string call = "warpgroup_mma<E, kColumns>(c,";
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(fault_of(changed(call, "if (thread_index() != 200) " + call), options),
                AllOf(HasSubstr("warpgroup_mma (trial.cu:"), HasSubstr("thread")));
  }
  Trial few = changed("i += 256", "i += 96");
  few.threads = 96;
  few.text.replace(few.text.find("trial, 256"), 10, "trial, 96");
  EXPECT_THAT(fault_of(few), AllOf(HasSubstr("deadlock: threads 0-95 wait at warpgroup_mma")));
}

TEST(WarpgroupFault, DescriptorOutsideOrNotOfAll) {
  EXPECT_THAT(fault_of(changed("advanced(b, 2 * k", "advanced(b, 2 * (k + 1)")),
              AllOf(HasSubstr("warpgroup_mma of 16 bytes at offset"), HasSubstr("of an arena")));
  const std::vector<std::uint32_t> out =
      run(changed("(c, a[k], advanced(b,", "(c, a[k], advanced(b + (warp() == 5 ? 1 : 0), 0 *"));
  EXPECT_EQ(out.at(16 * 5 * 16), 0xffffffffu);  // NaN
  EXPECT_NE(out.at(16 * 3 * 16), 0xffffffffu);
}

}  // namespace
}  // namespace vqgen::host_test

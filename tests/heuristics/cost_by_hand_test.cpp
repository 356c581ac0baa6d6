// The cost model's counts of single plans, computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/profiles.h"
#include "heuristics/cost.h"
#include "heuristics/kernels/fragments_registers.h"
#include "heuristics/kernels/slice.h"

namespace vqgen {
namespace {

Gemv one_row() {
  Gemv op;
  op.shape = {1, 4096, 4096};
  op.weights = find_format("aqlm-2x8", "test");
  return op;
}

TEST(Cost, CopiesTakeFewerPassesAndMoreToFill) {
  const Gemv op = one_row();
  const GpuSpec gpu = find_gpu("h200");
  LinearMma plan{.outputs_per_warp = 16, .chunk_columns = 4096, .codebook = all_shared(256)};
  CostModel model(op, gpu, {});
  const CostParts once = model.ideal(plan);
  plan.codebook = all_replicated(256, 8);
  const CostParts copied = model.ideal(plan);
  EXPECT_LT(copied[CostPart::shared], once[CostPart::shared]);
  EXPECT_GT(copied[CostPart::fill], once[CostPart::fill]);
  plan.codebook = all_global();
  const CostParts global = model.ideal(plan);
  EXPECT_GT(global[CostPart::lines], 0);
  EXPECT_EQ(once[CostPart::lines], 0);
  // A global codebook saves the loads of 512 entries, two per thread, but brings 8 KiB to L1 at 7
  // bytes per clock.
  ASSERT_EQ(plan.threads, 256);
  const double clock = gpu.sm_clock_mhz;
  const double x = once[CostPart::fill] - 2 * kLatencyCycles / clock;
  EXPECT_NEAR(global[CostPart::fill], x + 8192 / 7.0 / clock, 1e-3);
}

// A tile of gptvq-2 has 256 columns: a block fills 16 times. Beside another block, one of these
// fills overlaps with no other work.
TEST(Cost, LaterFillsPassBehindWhatBlocksBesideDo) {
  Gemv op;
  op.shape = {1, 4096, 4096};
  op.weights = find_format("gptvq-2", "test");
  const LinearMma plan{.threads = 256,
                       .outputs_per_warp = 16,
                       .chunk_columns = 256,
                       .splits = 1,
                       .rows_per_block = 4,
                       .fragment_rows = 4,
                       .code_words = 4,
                       .codebook = all_replicated(256, 8)};
  GpuSpec gpu = find_gpu("h200");
  ASSERT_TRUE(check(plan, op, gpu).ok);
  constexpr int kBlocks = 32;
  constexpr double kFills = 16;
  gpu.sms = kBlocks;
  const CostParts alone = CostModel(op, gpu, {}).ideal(plan);
  gpu.sms = kBlocks / 2;
  const CostParts beside = CostModel(op, gpu, {}).ideal(plan);
  const double again = alone[CostPart::fill] * (1 - 1 / kFills);
  const double others =
      *std::max_element(beside.of.begin() + static_cast<int>(CostPart::memory), beside.of.end()) /
      2;
  ASSERT_LT(others, again);  // so that more than one fill remains
  EXPECT_NEAR(beside[CostPart::fill], alone[CostPart::fill] - others, 1e-9);
}

// 4096 x 4096 in codes of 2 bits on 128 blocks, one SM each.
TEST(Cost, CountsOfAPlanByHand) {
  const Gemv op = one_row();
  GpuSpec gpu = find_gpu("h200");
  gpu.sm_clock_mhz = 1000;
  gpu.memory_gbps = 1000;
  const LinearMma plan{.threads = 128,
                       .outputs_per_warp = 8,
                       .chunk_columns = 4096,
                       .splits = 1,
                       .rows_per_block = 4,
                       .fragment_rows = 4,
                       .code_words = 4,
                       .codebook = all_replicated(256, 8)};
  ASSERT_TRUE(check(plan, op, gpu).ok);
  const CostParts us = CostModel(op, gpu, {}).ideal(plan);
  const double lookups = 4096.0 * 4096 / 8 * 2 / 32 / 128;  // by warps, for a block of 32 outputs
  const double share = 1 - 0.3 * 4 / 132;                   // of a block: four SMs have none
  EXPECT_DOUBLE_EQ(us[CostPart::lookups], share * lookups / 4 / 1000);
  EXPECT_DOUBLE_EQ(us[CostPart::tensor], share * lookups * 2 / 1000);  // one mma per entry
  EXPECT_DOUBLE_EQ(us[CostPart::memory], (4096.0 * 4096 / 4 + 8192) * 1e-6);
  const double x = 4096.0 / 8 / 4 * 4 * 2;     // wavefronts: octets of a warp, 4 warps
  const double staged = 4096.0 * 4 * 2 / 128;  // also loads, and stores into the stage
  const double codes = 4096.0 / 256 * 8 * 4;   // a run of 256 columns: each warp loads from 8 rows
  const double fill = 256.0 * 2 * 8 * 16 / 128;  // also the copies
  EXPECT_DOUBLE_EQ(us[CostPart::shared],
                   share * (lookups * 4 + x + 2 * staged + codes + fill) / 1000);
  EXPECT_EQ(us[CostPart::combine], 0);
  EXPECT_EQ(us[CostPart::lines], 0);
  // Most SMs have two blocks, at once and then one after the other.
  gpu.sms = 66;
  const double missing = 2 - 128.0 / 66;
  EXPECT_DOUBLE_EQ(CostModel(op, gpu, {}).ideal(plan)[CostPart::lookups],
                   (2 - 0.3 * missing) * lookups / 4 / 1000);
  gpu.max_threads_per_sm = plan.threads;
  EXPECT_DOUBLE_EQ(CostModel(op, gpu, {}).ideal(plan)[CostPart::lookups],
                   (2 - 0.1 * missing) * lookups / 4 / 1000);
}

// With splits a kernel merges while blocks of the next call begin, if launches overlap.
TEST(Cost, OfAStartThatNoMergingHides) {
  const Gemv op = one_row();
  for (const auto& [name, start] : {std::pair{"h200", 6.0}, std::pair{"a100", 0.0}}) {
    GpuSpec gpu = find_gpu(name);
    gpu.sm_clock_mhz = 1000;
    gpu.sms = 300;  // each block has its own SM
    LinearMma plan{.threads = 128,
                   .outputs_per_warp = 8,
                   .chunk_columns = 4096,
                   .splits = 1,
                   .rows_per_block = 4,
                   .fragment_rows = 4,
                   .codebook = all_shared(256)};
    ASSERT_TRUE(check(plan, op, gpu).ok);
    CostModel model(op, gpu, {});
    EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::prologue], (2 + start) * 0.3) << name;
    plan.chunk_columns = 2048;
    EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::prologue], (3 + 2 + start) * 0.3) << name;
    plan.splits = 2;
    EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::prologue], 2 * 0.3) << name;
  }
}

// The last block's work replaces the second kernel, and nothing else differs.
TEST(Cost, TheLastBlockTakesTurnsInPlaceOfAKernel) {
  const Gemv op = one_row();
  GpuSpec gpu = find_gpu("h200");
  gpu.sm_clock_mhz = 1000;
  LinearMma plan{.threads = 256,
                 .outputs_per_warp = 8,
                 .chunk_columns = 128,
                 .splits = 17,
                 .rows_per_block = 4,
                 .fragment_rows = 4};
  ASSERT_TRUE(check(plan, op, gpu).ok);
  CostModel model(op, gpu, {});
  CostParts by_kernel = model.ideal(plan);
  plan.combine = Combine::last_block;
  const CostParts by_block = model.ideal(plan);
  const double sums = 17 * 4096 * 4 * 2 / (132 * 64 * 1e3);  // that are read, at twice their time
  // 64 results, 16 loads at once.
  EXPECT_DOUBLE_EQ(by_block[CostPart::combine], (3 + 2) * 0.3 + sums);
  EXPECT_GT(by_kernel[CostPart::combine], 1);
  by_kernel[CostPart::combine] = by_block[CostPart::combine];
  EXPECT_EQ(by_kernel.of, by_block.of);
}

TEST(Cost, OfTheLastBlockOfAttention) {
  AttentionDecode op;
  op.shape = {1, 32, 8, 128, 8192};
  op.keys = op.values = find_format("vecinfer-d4b8", "test");
  op.values.smooth = op.values.hadamard = false;
  GpuSpec gpu = find_gpu("h200");
  gpu.sm_clock_mhz = 1000;
  gpu.sms = 1100;  // each block has its own SM
  AttentionMma plan{.threads = 128,
                    .step_tokens = 16,
                    .splits = 20,
                    .combine = Combine::last_block,
                    .heads_per_block = 4};
  const Verdict verdict = check(plan, op, gpu);
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  CostModel model(op, gpu, {});
  // 512 channels, four per thread; two groups of splits one after the other.
  const double sums_of_a_split = 32 * 130 * 4 * 2 / (1100 * 64 * 1e3);
  EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::combine], (1 + 4 * 2) * 0.3 + 20 * sums_of_a_split);
  // In a combine kernel, each of up to eight teams has a group of splits, and the teams exchange
  // their sums.
  plan.combine = Combine::kernel;
  EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::combine],
                   0.7 + (1 + 3) * 0.3 + 20 * sums_of_a_split);
  plan.splits = 130;
  EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::combine],
                   0.7 + (2 + 3) * 0.3 + 130 * sums_of_a_split);
}

// All parts take longer if an SM has several blocks. Blocks of 16 warps wait longer around their
// tokens, and the first global lookup waits longer for codes.
TEST(Cost, OfBlocksOfFragments) {
  AttentionDecode op;
  op.shape = {1, 32, 8, 128, 8192};
  op.keys = op.values = find_format("vecinfer-d4b8", "test");
  CostModel model(op, find_gpu("h200"), {});
  AttentionMma plan{.threads = 256, .splits = 16, .heads_per_block = 4};
  plan.key_codebook = plan.value_codebook = all_shared(256);
  EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::launch], 1);  // 128 blocks
  const CostParts near = model.ideal(plan);
  plan.splits = 17;
  EXPECT_DOUBLE_EQ(model.ideal(plan)[CostPart::launch], 1.035);
  plan.splits = 16;
  plan.threads = 512;
  EXPECT_GT(model.ideal(plan)[CostPart::prologue], near[CostPart::prologue]);
  plan.threads = 256;
  plan.value_codebook = all_global();
  EXPECT_GT(model.ideal(plan)[CostPart::chain], near[CostPart::chain]);
}

// Blocks of several heads gather from the codebooks of each, which exceed L1 together.
TEST(Cost, OfLookupsInCodebooksOfSeveralHeads) {
  AttentionDecode op;
  op.shape = {64, 8, 8, 128, 8192};
  op.keys = op.values = find_format("vecinfer-d8b12", "test");
  AttentionMma plan{.threads = 128};
  plan.key_codebook = plan.value_codebook = all_global();
  const auto lines = [&] {
    return CostModel(op, find_gpu("h200"), {}).ideal(plan)[CostPart::lines];
  };
  const double of_heads = lines();
  op.keys.scope = op.values.scope = Scope::tensor;
  EXPECT_GT(of_heads, 1.2 * lines());
}

// 16-bit keys whose words share codes take five more registers per tile. The fourth quad of heads
// takes fewer, the fewer channels there are.
TEST(FragmentsRegisters, GrowWithSharedCodesAndLessWithTheFourthQuad) {
  AttentionDecode op;
  op.shape = {1, 32, 2, 128, 8192};
  op.keys = op.values = find_format("vecinfer-d4b8", "test");
  AttentionMma plan{.threads = 128, .step_tokens = 32, .heads_per_block = 4};
  plan.key_codebook = plan.value_codebook = all_shared(256);
  const int whole = registers_of(plan, op);
  op.keys.index_bits = 10;
  EXPECT_EQ(registers_of(plan, op), whole + 4 * 5);
  op.keys.entry_type = EntryType::int8;
  EXPECT_EQ(registers_of(plan, op), whole);
  const auto fourth = [&](int channels) {
    op.shape.head_dim = channels;
    plan.heads_per_block = 12;
    const int three = registers_of(plan, op);
    plan.heads_per_block = 16;
    return registers_of(plan, op) - three;
  };
  // 16.8 + 2.3 per octet of 32 channels + 2.1 per tile - 5.5 (5 - octets)
  EXPECT_NEAR(fourth(64), 16.8 + 2 * 2.3 + 4 * 2.1 - 5.5 * 3, 1);
  EXPECT_NEAR(fourth(128), 16.8 + 4 * 2.3 + 4 * 2.1 - 5.5 - 4, 1);
}

// 64 lines hold the entries of four sub-vectors, and a step's tiles follow each other. Lines that
// no earlier tile touched come from L2 if L1 holds none. For values, a warp reads eight
// sub-vectors, and two tokens of each in sequence.
TEST(Cost, OfLookupsThatFindTheLinesOfTheOneBefore) {
  AttentionDecode op;
  op.shape = {1, 112, 14, 256, 59904};
  op.keys = op.values = find_format("million-d4b8", "test");
  AttentionMma plan{.threads = 256, .splits = 9, .heads_per_block = 8};
  const auto lines = [&](int step_tokens) {
    plan.step_tokens = step_tokens;
    GpuSpec gpu = find_gpu("h200");
    gpu.shared_bytes_per_sm = static_cast<int>(plan_use(plan, op).shared_bytes);
    return CostModel(op, gpu, {}).ideal(plan)[CostPart::lines];
  };
  const auto touched = [](double all, double lanes) {
    return all * (1 - std::pow(1 - 1 / all, lanes));
  };
  constexpr double kMissed = 1.75;
  plan.key_codebook = all_global();
  plan.value_codebook = all_shared(256);
  const double keys = lines(8);
  EXPECT_NEAR(lines(32) / keys,
              (touched(64, 32) + kMissed * touched(64, 128) / 4) / touched(64, 32) / (1 + kMissed),
              1e-9);
  std::swap(plan.key_codebook, plan.value_codebook);
  EXPECT_NEAR(lines(8) / keys,
              (touched(128, 32) + kMissed * touched(128, 64) / 2) / touched(64, 32) / (1 + kMissed),
              1e-9);
  EXPECT_DOUBLE_EQ(lines(32), lines(8));
}

// An integer product takes the time of three instructions, per row of x.
TEST(Cost, OfSlicesOfIntegers) {
  Gemm op;
  op.shape = {1, 2112, 4096};  // one block per SM
  op.weights = find_format("aqlm-1x16i8", "test");
  LinearSlicedCodebook plan{.threads = 512,
                            .outputs_per_warp = 4,
                            .columns_per_block = 4096,
                            .entry_slices = 4,
                            .rows_per_block = 4,
                            .code_words = 2};
  const GpuSpec gpu = find_gpu("h200");
  const auto arithmetic = [&](int rows) {
    op.shape.rows = rows;
    return CostModel(op, gpu, {}).ideal(plan)[CostPart::arithmetic];
  };
  // 16 warps look up 512 sub-vectors for 4 outputs, 32 at a time, and sum each group of outputs.
  const double lookups = 16 * 4 * 512 / 32, groups = 16;
  EXPECT_NEAR((arithmetic(4) - arithmetic(1)) * 4 * gpu.sm_clock_mhz,
              3 * (lookups * 3 + groups * 12), 1e-6);
}

// With the balanced schedule two blocks share an SM, so a thread has 128 registers. 8 heads and
// steps of 32 tokens need over 200 with INT8 codes, so short steps are faster.
TEST(Cost, OfBlocksThatLeaveEachOtherRegisters) {
  AttentionDecode op;
  op.shape = {4, 64, 8, 128, 131072};
  op.keys = op.values = find_format("int8-channel", "test");
  const GpuSpec gpu = find_gpu("h200");
  AttentionMma plan{.threads = 256,
                    .step_tokens = 8,
                    .splits = 33,
                    .combine = Combine::last_block,
                    .heads_per_block = 8};
  plan.schedule = Schedule::balanced;
  CostModel model(op, gpu, {});
  const double few = model(plan)->us;
  plan.step_tokens = 32;
  const Verdict verdict = check(plan, op, gpu);
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  EXPECT_GT(model(plan)->us, 1.05 * few);
}

// Partial sums larger than half of L2 are read from memory.
TEST(Cost, OfManyPartialSumsIsTheirWayThroughMemory) {
  Gemm op;
  op.shape = {.rows = 128, .out_features = 16384, .in_features = 4096};
  op.weights = find_format("aqlm-2x8", "test");
  GpuSpec gpu = find_gpu("h200");
  gpu.l2_bytes = std::int64_t{64} << 20;
  LinearWgmma plan{.threads = 256, .chunk_columns = 128, .rows_per_block = 128};
  const auto combine = [&](int splits) {
    plan.splits = splits;
    return CostModel(op, gpu, {}).ideal(plan)[CostPart::combine];
  };
  const double bytes = 128.0 * 16384 * 4;  // of one split, 8 MiB
  const double l2 = 132 * 64.0 * gpu.sm_clock_mhz, memory = 1e3 * gpu.memory_gbps;
  const double fixed = combine(4) - 4 * 2 * bytes / l2;
  const double a_split = kLatencyCycles / 8 / gpu.sm_clock_mhz;
  EXPECT_NEAR(combine(5) - fixed - a_split, 5 * 2 * bytes / memory, 1e-9);
}

// Blocks of the next call fill their tables while a kernel merges, but not after a pre-pass for x.
TEST(Cost, OfTablesThatAreFilledWhileTheLastCallMerges) {
  Gemm op;
  op.shape = {.rows = 8, .out_features = 4096, .in_features = 4096};
  op.weights = find_format("aqlm-2x8i8", "test");
  const GpuSpec gpu = find_gpu("h200");
  CostModel model(op, gpu, {});
  LinearInt8Wgmma groups{.threads = 512, .splits = 4, .rows_per_block = 8};
  groups.codebook = all_shared(256);
  groups.combine = Combine::cluster;
  ASSERT_TRUE(check(groups, op, gpu).ok) << check(groups, op, gpu).reason;
  const double whole = model.ideal(groups)[CostPart::fill];
  groups.combine = Combine::kernel;
  EXPECT_NEAR(model.ideal(groups)[CostPart::fill], whole, 1e-9);
  groups.prepack_x = 0;
  ASSERT_TRUE(check(groups, op, gpu).ok) << check(groups, op, gpu).reason;
  EXPECT_NEAR(model.ideal(groups)[CostPart::fill], 0.75 * whole, 1e-9);

  LinearInt8Mma bytes{.threads = 256, .outputs_per_warp = 32, .chunk_columns = 2048, .splits = 2};
  bytes.codebook = all_shared(256);
  bytes.warps_along_columns = 8;
  ASSERT_TRUE(check(bytes, op, gpu).ok);
  EXPECT_EQ(model.ideal(bytes)[CostPart::fill], 0);
  bytes.combine = Combine::cluster;
  EXPECT_GT(model.ideal(bytes)[CostPart::fill], 0);
}

// 32 threads handle 32 sub-vectors of a value at once: all channels of a block's half.
TEST(Cost, OfAttentionByChannelsIsThatOfABlocksShare) {
  AttentionDecode op;
  op.shape = {1, 32, 8, 128, 1024};
  op.keys = op.values = {.vector_size = 2, .index_bits = 8, .scope = Scope::tensor};
  AttentionChannels plan{.threads = 32, .tile_tokens = 32};
  plan.key_channel_splits = plan.value_channel_splits = 2;
  ASSERT_TRUE(check(plan, op, find_gpu("h200")).ok);
  CostModel model(op, find_gpu("h200"), {});
  for (const double part : model.ideal(plan).of) EXPECT_TRUE(std::isfinite(part));
}

}  // namespace
}  // namespace vqgen

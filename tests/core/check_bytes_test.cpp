// Requirements of the int8_mma GEMM dataflow: the format, whole codebooks, tiles and groups, and
// the GPU.
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

// 8 rows, 2 x 8 bits with a common scale.
Gemm bytes_gemm() {
  Gemm op;
  op.shape = {.rows = 8, .out_features = 64, .in_features = 4096};
  op.weights = find_format("aqlm-2x8i8", "test");
  return op;
}
LinearInt8Mma bytes() {
  LinearInt8Mma plan{.threads = 128, .outputs_per_warp = 16};
  plan.codebook = all_replicated(256, 16);
  return plan;
}

TEST(CheckBytes, SumsOfStagesAreBytes) {
  const auto checked = [](auto change) {
    Gemm op = bytes_gemm();
    change(op.weights);
    return check(bytes(), op, find_gpu("h200"));
  };
  expect_ok(checked([](VqFormat&) {}));
  expect_refused(checked([](VqFormat& f) { f.common_scale = false; }),
                 {"sums over the stages are bytes", "common_scale to true"});
  expect_ok(checked([](VqFormat& f) {
    f.common_scale = false;
    f.num_codebooks = 1;
  }));
  expect_refused(checked([](VqFormat& f) { f = find_format("aqlm-2x8", "test"); }),
                 {"entry_type to int8"});
  expect_refused(check(bytes(), bytes_gemm(), find_gpu("t4")), {"no int8 mma"});
}

TEST(CheckBytes, APlanHasWholeTilesGroupsAndCodebooks) {
  const auto with = [](auto change) {
    LinearInt8Mma plan = bytes();
    change(plan);
    return check(plan, bytes_gemm(), find_gpu("h200"));
  };
  expect_ok(with([](LinearInt8Mma& p) { p.codebook = all_shared(256); }));
  for (const Placement& where :
       {all_global(), all_shared(100), Placement{.replicated = 100, .copies = 16, .shared = 256}}) {
    expect_refused(with([&](LinearInt8Mma& p) { p.codebook = where; }),
                   {"all 256 entries in shared memory", "set codebook"});
  }
  expect_refused(with([](LinearInt8Mma& p) { p.product_rows = 6; }), {"product_rows 6"});
  expect_refused(with([](LinearInt8Mma& p) { p.rows_per_block = 12; }), {"rows_per_block 12", "8"});
  expect_refused(with([](LinearInt8Mma& p) { p.outputs_per_warp = 24; }),
                 {"outputs_per_warp 24", "multiple of 16"});
  expect_refused(with([](LinearInt8Mma& p) { p.warps_along_columns = 3; }), {"power of two"});
  expect_refused(with([](LinearInt8Mma& p) { p.warps_along_columns = 8; }), {"does not divide"});
  expect_refused(with([](LinearInt8Mma& p) { p.chunk_columns = 1000; }), {"256 columns of a run"});
  expect_refused(with([](LinearInt8Mma& p) {
                   p.threads = 512;
                   p.outputs_per_warp = 128;
                 }),
                 {"registers per thread, of 128", "outputs_per_warp"});
  expect_ok(with([](LinearInt8Mma& p) { p.prepack_x = 1; }));
  LinearInt8Mma before = bytes();
  before.prepack_x = 1;
  expect_refused(check(before, bytes_gemm(), find_gpu("a100")),
                 {"no bulk copies", "prepack_x to 0"});
  const auto made = [](int warps, int more) {
    return [=](LinearInt8Mma& p) {
      p.producer_warps = warps;
      p.threads += 32 * more;
    };
  };
  expect_ok(with(made(2, 2)));
  expect_refused(with(made(4, 0)), {"producer_warps 4", "4 warps of a block"});
  LinearInt8Mma uneven = bytes();
  uneven.warps_along_columns = 2;
  made(1, 0)(uneven);
  expect_refused(check(uneven, bytes_gemm(), find_gpu("h200")), {"does not divide the 3 warps"});
  expect_refused(with([](LinearInt8Mma& p) { p.producer_warps = p.prepack_x = 1; }),
                 {"both turn x to bytes"});
  LinearInt8Mma making = bytes();
  made(2, 2)(making);
  expect_refused(check(making, bytes_gemm(), find_gpu("a100")), {"producer_warps to 0"});
  Gemm longest = bytes_gemm();  // a chunk of gigabytes overflows 32 bits
  longest.shape.in_features = 1 << 24;
  LinearInt8Mma whole = bytes();
  whole.chunk_columns = 1 << 24;
  expect_refused(check(whole, longest, find_gpu("h200")), {"shared memory"});
  Gemm groups = bytes_gemm();
  groups.weights.scope = Scope::channel_group;
  groups.weights.group_channels = 512;
  expect_refused(check(bytes(), groups, find_gpu("h200")),
                 {"chunk_columns 1024", "512 columns of one codebook"});
  making.chunk_columns = 512;
  expect_refused(check(making, groups, find_gpu("h200")),
                 {"codebooks serve the columns", "producer_warps to 0"});
}

TEST(CheckBytegroups, TakeHopperOneCodebookAndColumnsWithin32Bits) {
  Gemm op = bytes_gemm();
  op.shape.rows = 40;
  LinearInt8Wgmma sound{.threads = 256};
  sound.codebook = all_shared(256);
  const auto with = [&](auto change) {
    LinearInt8Wgmma plan = sound;
    change(plan);
    return check(plan, op, find_gpu("h200"));
  };
  expect_ok(with([](LinearInt8Wgmma& p) { p.rows_per_block = 64; }));
  expect_refused(check(sound, op, find_gpu("a100")), {"no wgmma", "int8_mma"});
  expect_refused(with([](LinearInt8Wgmma& p) { p.threads = 192; }), {"threads 192", "warp groups"});
  for (const int rows : {4, 24, 256}) {
    expect_refused(with([&](LinearInt8Wgmma& p) { p.rows_per_block = rows; }),
                   {"rows_per_block " + std::to_string(rows), "power of two from 8 to 128"});
  }
  expect_refused(with([](LinearInt8Wgmma& p) {
                   p.threads = 512;
                   p.rows_per_block = 128;
                 }),
                 {"registers per thread, of 128"});
  expect_refused(with([](LinearInt8Wgmma& p) {
                   p.code_words = 1;
                   p.chunk_columns = 32;
                 }),
                 {"chunk_columns 32", "two steps"});
  // Without the pre-pass, all of a block's columns of x are in its shared memory.
  const auto by_block = [](int splits, int rows) {
    return [=](LinearInt8Wgmma& p) {
      p.prepack_x = 0;
      p.splits = splits;
      p.rows_per_block = rows;
    };
  };
  op.shape.in_features = 8192;
  expect_ok(with(by_block(2, 16)));
  expect_refused(with(by_block(1, 16)), {"8192 columns to bytes at once", "more splits"});
  expect_refused(with(by_block(2, 64)), {"bytes of shared memory per block"});
  op.shape.in_features = 4096;
  op.weights.scope = Scope::channel_group;
  op.weights.group_channels = 1024;
  expect_refused(check(sound, op, find_gpu("h200")), {"4 codebooks", "use dataflow int8_mma"});
  op = bytes_gemm();
  op.shape.in_features = 132608;
  expect_refused(check(sound, op, find_gpu("h200")), {"132608 columns pass 32 bits"});
}

}  // namespace
}  // namespace vqgen

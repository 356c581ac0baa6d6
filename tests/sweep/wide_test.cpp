// Wide sub-vectors and many residual stages (VQKV): every op of a cache by simt, and the kernels'
// reads of entries and codes.
#include <gtest/gtest.h>

#include "generator/generate.h"
#include "runtime/ops/kv_append/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct WideCase {
  const char* name;
  int head_dim;
  VqFormat keys;
  VqFormat values;
  DType dtype = DType::f16;
  int page_tokens = 0;
  bool appends = true;
};

VqFormat transformed(VqFormat format) {
  format.smooth = format.hadamard = format.stage_scales = true;
  return format;
}
VqFormat scaled(VqFormat format) {
  format.stage_scales = true;
  return format;
}

// Every vector size, the most stages of narrow and wide ones, the fewest and the most entries.
std::vector<WideCase> wide_cases() {
  return {
      {"16x36", 64, wide(16, 36, 4, Scope::head), wide(64, 5, 5)},
      {"48x20", 96, wide(48, 20, 4), wide(96, 9, 6, Scope::head), DType::bf16, 16},
      {"128x8", 128, transformed(wide(128, 8, 10)), scaled(wide(32, 6, 7, Scope::channel_group))},
      {"4x36", 64, wide(4, 36, 8, Scope::head), wide(2, 5, 3), DType::f16, 32},
      {"80x20", 80, wide(80, 20, 8), wide(16, 7, 2, Scope::channel_group)},
      {"128x2 of 65536", 256, wide(128, 2, 16), wide(64, 1, 16), DType::f16, 0, false},
  };
}

template <class Op>
Op problem_of(const WideCase& from) {
  Op op;
  op.dtype = from.dtype;
  op.keys = from.keys;
  op.values = from.values;
  op.shape.batch = 2;
  op.shape.kv_heads = 2;
  op.shape.head_dim = from.head_dim;
  op.shape.tokens = 70;
  op.shape.recent_tokens = 9;
  op.shape.sinks = 2;
  op.shape.page_tokens = from.page_tokens;
  if constexpr (std::is_same_v<Op, AttentionDecode>) op.shape.query_heads = 6;
  if constexpr (std::is_same_v<Op, KvAppend>) op.shape.new_tokens = 5;
  validate(op, from.name);
  return op;
}

class Wide : public SweepTest<> {
 protected:
  template <class Op>
  static void expect_right(const WideCase& from, std::uint64_t seed) {
    const Op op = problem_of<Op>(from);
    ASSERT_TRUE(check(op).ok) << from.name << ": " << check(op).reason;
    SweepCase each;
    each.name = from.name;
    each.problem = op;
    each.plan = choose(op, sweep_gpu());
    each.input.seed = seed;
    each.input.lengths = LengthPattern::ragged;
    EXPECT_EQ(failure_of(each, *sweep_backend(seed), sweep_gpu()), "");
  }
};

TEST_F(Wide, AttentionByLanes) {
  std::uint64_t seed = 1;
  for (const WideCase& each : wide_cases()) {
    if (each.head_dim != 80) expect_right<AttentionDecode>(each, seed++);
  }
}

TEST_F(Wide, DecodedByLanes) {
  std::uint64_t seed = 11;
  for (const WideCase& each : wide_cases()) expect_right<KvDequantize>(each, seed++);
}

TEST_F(Wide, AppendedByLanes) {
  std::uint64_t seed = 21;
  for (const WideCase& each : wide_cases()) {
    if (each.appends) expect_right<KvAppend>(each, seed++);
  }
}

// Each fault changes one place of the kernel's text.
TEST_F(Wide, WrongPiecesAndStagesAreFound) {
  const auto op = problem_of<KvDequantize>(wide_cases()[0]);
  const AttentionData data = make_dequantize_data(op, {.seed = 31});
  const DequantizeResult reference = reference_dequantize(data);
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const Fault faults[] = {{"s % kPieces);", "0);"},
                          {"* kResiduals + stage) * kBits", "* kResiduals) * kBits"},
                          {"load_constant(entry + piece)", "load_constant(entry)"},
                          {"kEntries + number) * kEntryPieces", "kEntries + number)"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return judge_dequantize(data, reference, faulty.run_dequantize(data)).comparison.ok;
  });
}

TEST_F(Wide, WrongDistancesAndResidualsAreFound) {
  const auto op = problem_of<KvAppend>(wide_cases()[0]);
  const AppendData data = make_append_data(op, {.seed = 41});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  const Fault faults[] = {{"load_global(from + piece), share_", "load_global(from), share_"},
                          {"load(from + first + i)", "load(from)"},
                          {"x + piece * kPiece + d", "x + d"},
                          {"store_shared(rest, load_shared(rest) - taken[d]);", ""}};
  expect_faults_found(op, plan, faults,
                      [&](Kernel& faulty) { return judge_append(data, faulty.run(data)).ok; });
}

}  // namespace
}  // namespace vqgen::test

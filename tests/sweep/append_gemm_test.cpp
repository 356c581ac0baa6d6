// append_gemm gives the bits of append_simt on inputs for which tensor-core estimates decide worst,
// also for keys in parts; and such input finds kernels that trust estimates too much.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/sweep/cases.h"
#include "tests/sweep/hard_append.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct ProductsCase {
  const char* name;
  int head_dim;
  VqFormat keys, values;
  DType dtype = DType::f16;
  int page_tokens = 0;
};

VqFormat with_scales(VqFormat format) {
  format.stage_scales = true;
  return format;
}

// The first `first` channels of a head in reverse order, and the others.
VqFormat two_parts(int head_dim, int first, VqFormat a, VqFormat b) {
  std::vector<VqFormat> parts{std::move(a), std::move(b)};
  for (int channel = 0; channel < head_dim; ++channel) {
    const bool of_first = head_dim - 1 - channel < first;
    parts[of_first ? 0 : 1].channels.insert(parts[of_first ? 0 : 1].channels.begin(), channel);
  }
  return in_parts(std::move(parts));
}

std::vector<ProductsCase> products_cases() {
  using enum Scope;
  VqFormat turned = with_scales(wide(32, 3, 6, head));
  turned.smooth = turned.hadamard = true;
  return {
      {"16 and 64", 64, wide(16, 2, 7, head), wide(64, 3, 8)},
      {"48 and 96", 96, with_scales(wide(48, 3, 6)), wide(96, 2, 8, head), DType::bf16, 16},
      {"32 and 128", 128, turned, wide(128, 2, 9)},
      {"80 and 16 by groups", 80, wide(80, 4, 5), wide(16, 2, 6, channel_group), DType::bf16},
      {"two parts", 128, two_parts(128, 80, wide(80, 3, 6), wide(48, 2, 7, head)), wide(128, 3, 6),
       DType::f16, 32},
  };
}

KvAppend products_problem(const ProductsCase& from) {
  KvAppend op;
  op.dtype = from.dtype;
  op.keys = from.keys;
  op.values = from.values;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = from.head_dim,
              .tokens = 80,
              .new_tokens = 37,
              .recent_tokens = 4,
              .sinks = 2,
              .page_tokens = from.page_tokens};
  validate(op, from.name);
  return op;
}

class AppendByProducts : public SweepTest<> {
 protected:
  static Kernel kernel(const KvAppend& op, const Plan& plan) {
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
};

TEST_F(AppendByProducts, HardInputHasTheBitsOfLanes) {
  std::uint64_t number = 0;
  for (const ProductsCase& from : a_third(products_cases())) {
    SCOPED_TRACE(from.name);
    const KvAppend op = products_problem(from);
    const Plan narrow = AppendGemm{.threads = 64, .tokens_per_block = 37, .tile_bytes = 1024};
    const Plan split = AppendGemm{.threads = 96, .splits = 2, .tokens_per_block = 5};
    const Plan grouped =
        AppendGemm{.threads = 128, .tokens_per_block = 21, .tile_bytes = 65536, .warpgroups = 1};
    expect_bits_of_lanes(op, a_third({narrow, split, grouped}, third_after(number++)));
  }
}

// Sets of 16 entries, whose numbers have the most bits.
TEST_F(AppendByProducts, ManyEntriesHaveTheBitsOfLanes) {
  KvAppend op = products_problem(products_cases().front());
  op.shape.batch = op.shape.kv_heads = 1;
  op.shape.new_tokens = 9;
  op.keys = wide(64, 2, 14);
  op.values = wide(32, 1, 14);
  const AppendData data = hard_data(op, Hard::halfway);
  Kernel lanes = kernel(op, rules_plan<AppendSimt>(op, sweep_gpu()));
  const AppendResult right = lanes.run(data);
  for (const AppendGemm& plan :
       {AppendGemm{.threads = 32, .tokens_per_block = 8},
        {.threads = 128, .tokens_per_block = 9, .tile_bytes = 1024, .warpgroups = 1}}) {
    EXPECT_EQ(differences(right, kernel(op, plan).run(data)), 0u);
  }
}

// Each fault changes one place of the kernel's text; some hard input reveals it.
TEST_F(AppendByProducts, HardInputFindsKernelsThatTrustEstimates) {
  const KvAppend op = products_problem(products_cases().front());
  const Plan plan = AppendGemm{.threads = 64, .tokens_per_block = 37};
  const Fault faults[] = {
      {"more > 0.0f && more * more > product_", "true"},
      {"more > 0.0f && more * more > product_", "estimate < best_"},
      {"const bool open = row.real && !", "const bool open = row.real && false && !"},
      {"i == 0 || !margin.beyond(estimates.bits[0])", "i == 0"},
      {"estimate = lower;", "estimate = kNoEstimate;"},
      {"if (!first) {", "if (false) {"},
      {"i / 2 * 8 + number % 4 * 2 + i % 2", "i / 2 * 8 + number % 4 * 2"},
      {"sums[1] += high * high;", ""},
      {"last = larger_estimate(last, others[0]);", ""},
      {"store_shared(parts + 2 * warp() + 1, nearest)", "store_shared(parts + 2 * warp() + 1, 0u)"},
  };
  expect_estimates_checked(op, plan, faults);
  // With stage scales, scaled sub-vectors are not 16-bit elements.
  KvAppend scaled = op;
  scaled.keys = with_scales(op.keys);
  const Fault of_one_side[] = {{"bits < 0 ? 0.0f : estimate_value(bits)", "estimate_value(bits)"}};
  expect_estimates_checked(scaled, plan, of_one_side);
  const Fault of_pairs[] = {{"bits[1] = larger_estimate(bits[1], smaller_estimate(a, b));", ""},
                            {"bits[2] = larger_estimate(bits[2], larger_estimate(a, b));", ""}};
  expect_estimates_checked(op, AppendGemm{.threads = 128, .tokens_per_block = 37, .warpgroups = 1},
                           of_pairs);
}

}  // namespace
}  // namespace vqgen::test

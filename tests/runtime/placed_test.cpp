// Whatever place() makes of a profile, a kernel's result does not change by a bit.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "core/profiles.h"
#include "generator/generate.h"
#include "heuristics/choose.h"
#include "heuristics/placement/place.h"
#include "heuristics/placement/plan_use.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/execute.h"
#include "runtime/verify/hard_input.h"
#include "tests/heuristics/access_counts_random.h"
#include "tests/kernel_cache.h"

namespace vqgen {
namespace {

class Placements : public testing::Test {
 protected:
  std::vector<std::uint16_t> bits_of(const Problem& problem, const Plan& plan) {
    const KernelSource source = generate(problem, plan, gpu_, Machine::host, {});
    const auto kernel = backend_->load(backend_->compile(source), source);
    if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
      AttentionOutput output =
          execute(*backend_, *kernel, source, *op, plan,
                  make_attention_data(*op, {.seed = 3, .codes = CodePattern::zipf}));
      const std::size_t at = output.out.size();
      output.out.resize(at + output.lse.size() * 2);
      std::memcpy(output.out.data() + at, output.lse.data(), output.lse.size() * 4);
      return output.out;
    }
    const Linear& op = *as_linear(problem);
    return execute(*backend_, *kernel, source, op, plan,
                   make_linear_data(op, {.seed = 4, .codes = CodePattern::zipf}));
  }

  // Some of the `trials` placements must use each level.
  void expect_same_bits(const Problem& problem, int trials) {
    std::mt19937_64 random(11);
    Plan far = choose(problem, gpu_, {.chooser = Chooser::rules});
    for (const OperandUse& use : plan_use(far, problem).operands) {
      *placement_of(far, use.operand) = all_global();
    }
    const std::vector<std::uint16_t> expected = bits_of(problem, far);
    std::set<std::string> seen;
    for (int trial = 0; trial < trials; ++trial) {
      const std::vector<AccessCounts> profiles = random_profiles(problem, random);
      const PlaceOptions options{.strategy = trial % 2 == 0 ? Strategy::paper : Strategy::measured,
                                 .registers = 32 + static_cast<int>(random() % 64)};
      const Placed placed = place(far, problem, gpu_, profiles, options);
      std::string name;
      for (const OperandPlacement& each : placed.operands) {
        name += short_name(each.placement, 1 << 30) + " ";
      }
      SCOPED_TRACE(name);
      ASSERT_TRUE(check(placed.plan, problem, gpu_).ok);
      if (!seen.insert(name).second) continue;
      EXPECT_EQ(bits_of(problem, placed.plan), expected);
    }
    EXPECT_GE(seen.size(), 3u);
  }

  std::unique_ptr<Backend> backend_ = test::keeping_kernels(make_host_backend({.optimize = false}));
  GpuSpec gpu_ = find_gpu("t4");  // little shared memory: not everything fits
};

TEST_F(Placements, OfACacheDoNotChangeABit) {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .tokens = 100};
  op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 12, .scope = Scope::head};
  expect_same_bits(op, 10);
}

TEST_F(Placements, OfAMatrixDoNotChangeABit) {
  Gemm op;
  op.shape = {4, 64, 1024};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  gpu_ = find_gpu("h200");
  expect_same_bits(op, 10);
}

}  // namespace
}  // namespace vqgen

// space(): plans that check() accepts, each once, bounded, reproducible, of every fitting kind, and
// with codebooks in the requested places.
#include "heuristics/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/ceil_div.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/placement/plan_use.h"
#include "tests/core/support.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

Gemv gemv(const std::string& format, LinearShape shape) {
  Gemv op;
  op.shape = shape;
  op.weights = find_format(format, "test");
  return op;
}
Gemm gemm(const std::string& format, LinearShape shape) {
  Gemm op;
  op.shape = shape;
  op.weights = find_format(format, "test");
  return op;
}
AttentionDecode attention(const std::string& format, AttentionShape shape) {
  AttentionDecode op;
  op.shape = shape;
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

// The codes of a sub-vector fill two words.
Gemm gemm_of_long_codes() {
  Gemm op;
  op.shape = {13, 4099, 32};
  op.weights = {.vector_size = 4, .index_bits = 16, .num_codebooks = 4};
  return op;
}

// Problems of all ops, awkward sizes among them.
std::vector<Problem> awkward_problems() {
  return {gemv("aqlm-2x8", {1, 4096, 4096}),
          gemv("aqlm-3", {3, 100, 520}),
          gemv("quip-4", {8, 11008, 4096}),
          gemv("aqlm-1x16", {1, 8, 8}),
          gemm("gptvq-2", {64, 4096, 11008}),
          gemm("gptvq-2", {2, 256, 256}),
          gemm("aqlm-1x8", {256, 1000, 1000}),
          gemm_of_long_codes(),
          gemm("million-d2b8", {2, 1, 2}),
          attention("cq-4c8b", {1, 32, 32, 128, 4096, 0, 0, false}),
          attention("cq-2c8b", {8, 32, 8, 128, 1, 16, 4, false}),
          attention("vecinfer-d8b12", {3, 12, 4, 96, 977, 0, 0, true})};
}

std::set<std::string> texts(const std::vector<Plan>& plans) {
  std::set<std::string> all;
  for (const Plan& plan : plans) all.insert(to_json(plan).dump());
  return all;
}

TEST(Space, HoldsAcceptedDistinctPlansTheSameEachTime) {
  std::uint64_t number = 0;
  for (const Problem& problem : awkward_problems()) {
    for (const std::string& name : test::a_third(gpu_names(), test::third_after(number++))) {
      const GpuSpec gpu = find_gpu(name);
      SCOPED_TRACE(name + " " + to_json(problem).dump());
      const Space all = space(problem, gpu, {.most = 0});
      EXPECT_EQ(all.feasible, all.plans.size());
      const Space by_kernels = space(problem, gpu, {.most = 0, .last_block = false});
      EXPECT_LT(by_kernels.plans.size(), 6000u);  // choose() looks at each of them
      EXPECT_FALSE(all.plans.empty());
      EXPECT_EQ(texts(all.plans).size(), all.plans.size());
      for (const Plan& plan : all.plans) {
        const Verdict verdict = check(plan, problem, gpu);
        ASSERT_TRUE(verdict.ok) << verdict.reason << to_json(plan).dump();
      }
      EXPECT_EQ(space(problem, gpu, {.most = 0}).plans, all.plans);
    }
  }
}

// Each plan with splits occurs once with a kernel and once with the last block, and nothing else is
// new.
TEST(Space, OffersBothWaysToMergeSplits) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : awkward_problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    const Space both = space(problem, gpu, {.most = 0});
    const Space by_kernels = space(problem, gpu, {.most = 0, .last_block = false});
    std::set<std::string> expected = texts(by_kernels.plans);
    for (const Plan& plan : by_kernels.plans) {
      const auto merging = merged_by_last_block(plan, problem, gpu);
      const bool channels = std::holds_alternative<AttentionChannels>(plan);
      const int splits = call_shape(plan, problem).splits;
      EXPECT_EQ(merging.has_value(), splits > 1 && !channels);
      if (merging) expected.insert(to_json(*merging).dump());
    }
    EXPECT_EQ(texts(both.plans), expected);
  }
}

TEST(Space, IsThinnedToTheBoundAndKeepsEveryKind) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : test::a_third(awkward_problems())) {
    const Space all = space(problem, gpu, {.most = 0});
    std::set<std::string> kinds;
    for (const Plan& plan : all.plans) kinds.insert(kind_of(plan, problem));
    for (const std::size_t most :
         {kinds.size(), kinds.size() + 1, std::size_t{40}, std::size_t{150}, all.plans.size() - 1,
          all.plans.size(), all.plans.size() + 1}) {
      SCOPED_TRACE(fmt::format("{} {}", to_json(problem).dump(), most));
      if (most < kinds.size()) continue;
      const Space some = space(problem, gpu, {.most = most});
      EXPECT_EQ(some.feasible, all.plans.size());
      EXPECT_EQ(some.plans.size(), std::min(most, all.plans.size()));
      EXPECT_EQ(space(problem, gpu, {.most = most}).plans, some.plans);
      std::set<std::string> kept;
      for (const Plan& plan : some.plans) kept.insert(kind_of(plan, problem));
      EXPECT_EQ(kept, kinds);
      const std::set<std::string> whole = texts(all.plans);
      const std::set<std::string> part = texts(some.plans);
      EXPECT_EQ(part.size(), some.plans.size());
      EXPECT_TRUE(std::includes(whole.begin(), whole.end(), part.begin(), part.end()));
    }
  }
}

TEST(Space, HasWarpGroupsWhereTheGpuHasAndRowsAreMore) {
  const auto kinds = [](const Problem& problem, const std::string& gpu) {
    const std::vector<Plan> all = space(problem, find_gpu(gpu), {.most = 0}).plans;
    return std::any_of(all.begin(), all.end(),
                       [](const Plan& plan) { return std::holds_alternative<LinearWgmma>(plan); });
  };
  for (const int rows : {2, 5, 64, 256}) {
    const Problem problem = gemm("aqlm-2x8", {rows, 4096, 4096});
    EXPECT_TRUE(kinds(problem, "h200")) << rows;
    EXPECT_TRUE(kinds(problem, "h100")) << rows;
    for (const char* gpu : {"a100", "l40s", "t4", "b200", "rtx5090"})
      EXPECT_FALSE(kinds(problem, gpu)) << gpu;
  }
  EXPECT_FALSE(kinds(gemv("aqlm-2x8", {1, 4096, 4096}), "h200"));
}

// Every value of every axis of the whole space is in a sample of 150 too, except rare ones.
TEST(Space, IsThinnedEvenly) {
  const Problem problem = gemv("aqlm-2x8", {1, 4096, 4096});
  const GpuSpec gpu = find_gpu("h200");
  const auto shares = [&](std::size_t most) {
    std::map<std::string, double> of;
    double count = 0;
    for (const Plan& plan : space(problem, gpu, {.most = most}).plans) {
      const auto* fragments = std::get_if<LinearMma>(&plan);
      if (fragments == nullptr) continue;
      ++count;
      ++of[fmt::format("threads {}", fragments->threads)];
      ++of[fmt::format("along {}", fragments->warps_along_columns)];
      ++of[fmt::format("words {}", fragments->code_words)];
      ++of[fmt::format("rows {}", fragments->fragment_rows)];
    }
    for (auto& [name, share] : of) share /= count;
    return of;
  };
  const auto whole = shares(0);
  const auto part = shares(150);
  ASSERT_GE(whole.size(), 10u);
  for (const auto& [name, share] : whole) {
    const auto found = part.find(name);
    ASSERT_NE(found, part.end()) << name;
    EXPECT_NEAR(found->second, share, 0.15) << name;
  }
}

std::set<std::string> dataflows(const Problem& problem) {
  std::set<std::string> all;
  for (const Plan& plan : space(problem, find_gpu("h200")).plans)
    all.insert(std::string(kernel_name(plan)));
  return all;
}

TEST(Space, HasEveryDataflowThatFits) {
  using Names = std::set<std::string>;
  EXPECT_EQ(dataflows(gemv("aqlm-2x8", {1, 4096, 4096})),
            (Names{"linear_simt", "linear_mma", "linear_lut"}));
  EXPECT_EQ(dataflows(gemv("gptvq-2", {1, 4096, 4096})),
            (Names{"linear_simt", "linear_mma", "linear_lut"}));
  // No table holds 65536 points, nor 4096 entries for 32 sub-vectors of a row.
  EXPECT_EQ(dataflows(gemv("quip-4", {1, 4096, 4096})), (Names{"linear_simt", "linear_mma"}));
  EXPECT_EQ(dataflows(gemv("aqlm-3", {1, 4096, 4096})), (Names{"linear_simt", "linear_mma"}));
}

TEST(Space, ForcedPlacementsHold) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : awkward_problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    for (const auto allowed : {SpacePlacement::global, SpacePlacement::shared}) {
      const Space forced = space(problem, gpu, {.most = 0, .placement = allowed});
      const Space any = space(problem, gpu, {.most = 0});
      const std::set<std::string> whole = texts(any.plans);
      std::size_t expected = 0;
      const auto as_forced = [&](const Plan& plan) {
        if (std::holds_alternative<LinearSlicedCodebook>(plan)) return false;
        for (const OperandUse& use : plan_use(plan, problem).operands) {
          const Placement wanted = allowed == SpacePlacement::global
                                       ? all_global()
                                       : all_shared(vq::entries(use.format));
          const Placement* placement = placement_of(plan, use.operand);
          if ((placement == nullptr ? all_global() : *placement) != wanted) return false;
        }
        return true;
      };
      for (const Plan& plan : forced.plans) {
        EXPECT_TRUE(as_forced(plan));
        EXPECT_TRUE(whole.contains(to_json(plan).dump()));
      }
      for (const Plan& plan : any.plans) expected += as_forced(plan) ? 1u : 0u;
      EXPECT_EQ(forced.plans.size(), expected);  // only the placement is fixed
      EXPECT_TRUE(allowed == SpacePlacement::shared || expected > 0);
    }
  }
}

TEST(Space, IsEmptyWhereNoKernelIs) {
  AttentionDecode op = attention("cq-4c8b", {1, 32, 32, 128, 4096, 0, 0, false});
  op.shape.head_dim = 72;
  EXPECT_TRUE(space(op, find_gpu("h200")).plans.empty());
  EXPECT_TRUE(space(gemv("aqlm-1x16", {1, 64, 4096}), find_gpu("h200"),
                    {.placement = SpacePlacement::shared})
                  .plans.empty());  // 1 MiB
}

TEST(Space, SplitsAreEvenAndNoneIsEmpty) {
  for (std::int64_t pieces = 1; pieces <= 100; ++pieces) {
    for (std::int64_t wanted = 1; wanted <= 120; ++wanted) {
      const std::int64_t splits = even_splits(pieces, wanted);
      const std::int64_t share = (pieces + splits - 1) / splits;
      EXPECT_LE(splits, std::max<std::int64_t>(wanted, 1));
      EXPECT_GT(splits, 0);
      EXPECT_LT((splits - 1) * share, pieces) << pieces << " in " << wanted;
    }
  }
}

}  // namespace
}  // namespace vqgen

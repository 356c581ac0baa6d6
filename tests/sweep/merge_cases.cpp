#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kDType,
  kHeadDim,
  kHeads,
  kRows,
  kParts,
  kLengths,
  kAlignment,
  kThreads,
  kBlocks,
};
constexpr std::array kHeadDims{8, 64, 80, 256};  // 1 lane per head to a whole warp; 10 cuts through
constexpr std::array kHeadCounts{1, 5};
constexpr std::array kRowCounts{1, 6, 41};
constexpr std::array kPartCounts{2, 3, 8};
constexpr std::array kThreadCounts{32, 96, 256};
constexpr std::array kBlockCounts{1, 5, 1024};

// The number of values of each Axis.
const std::vector<int> kSizes{2, 4, 2, 3, 3, 2, 2, 3, 3};

SweepCase make_case(const std::vector<int>& v, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  AttentionMerge op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.rows = pick(kRowCounts, kRows),
              .heads = pick(kHeadCounts, kHeads),
              .head_dim = pick(kHeadDims, kHeadDim),
              .parts = pick(kPartCounts, kParts)};
  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  result.plan =
      MergeSimt{.threads = pick(kThreadCounts, kThreads), .blocks = pick(kBlockCounts, kBlocks)};
  result.input = {.seed = seed,
                  .lengths = v[kLengths] == 0 ? LengthPattern::full : LengthPattern::ragged};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases merge_pairwise(std::uint64_t seed) {
  return cases_of_pairs(kSizes, {}, seed, make_case);
}

}  // namespace vqgen::test

// Cases of epilogues of products: all dataflows over gates, residuals and multipliers, by blocks
// that hold both rows of a pair and by blocks that hold one.
#include "heuristics/check.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum Axis {
  kDataflow,
  kGate,
  kMultiplier,
  kResidual,
  kDType,
  kRows,
  kHalf,
  kInFeatures,
  kOutputScales,
  kBytes,
  kTiles,
  kExperts,
  kThreads,
  kSplits,
  kCombine,
  kAlignment,
};
enum GateRows { kNoGate, kEachInTurn, kRunsOf8, kRunsOf16, kAllFirst };
constexpr std::array kRowsOf{1, 3, 8, 13, 33};
constexpr std::array kHalves{16, 48, 112, 320};
constexpr std::array kIns{64, 520, 1000};
constexpr std::array kThreadsOf{0, 64, 128};
constexpr std::array kCombines{Combine::kernel, Combine::last_block, Combine::cluster};
// The number of values of each Axis.
const std::vector<int> kSizes{kLinearDataflows,  5,           2, 2, 2, kRowsOf.size(),
                              kHalves.size(),    kIns.size(), 2, 2, 2, 2,
                              kThreadsOf.size(), 3,           3, 2};

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&v](const auto& values, Axis axis) {
    return values.at(static_cast<std::size_t>(v[axis]));
  };
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  const int half = pick(kHalves, kHalf);
  LinearShape& shape = op.shape;
  shape.rows = pick(kRowsOf, kRows);
  shape.out_features = 2 * half;
  shape.in_features = pick(kIns, kInFeatures);
  if (v[kExperts] == 1) {
    shape.experts = 5;
    shape.total_rows = 2 * shape.rows;
  }
  if (v[kGate] != kNoGate) {
    shape.gate = Gate::silu;
    shape.gate_rows = std::array{1, 1, 8, 16, half}.at(static_cast<std::size_t>(v[kGate]));
  }
  if (v[kMultiplier] == 1) shape.multiplier = 0.22;
  shape.residual = v[kResidual] == 1;
  op.weights = {.vector_size = 8, .index_bits = v[kBytes] == 1 ? 8 : 6, .num_codebooks = 2};
  with_integers(op.weights, v[kBytes] == 1);
  op.weights.common_scale = v[kBytes] == 1;
  op.weights.output_scales = v[kOutputScales] == 1;
  if (v[kTiles] == 1) {  // as of parts with codebooks of their own
    op.weights.scope = Scope::tile;
    op.weights.tile_rows = v[kGate] == kAllFirst ? half : 2 * half;
    op.weights.tile_columns = 1024;
  }

  SweepCase result = product_case(op, v[kDataflow], gpu);
  if (const int threads = pick(kThreadsOf, kThreads); threads > 0) {
    Plan narrow = result.plan;
    change_own(
        narrow, [&](auto& own) requires requires { own.threads; } { own.threads = threads; });
    if (check(narrow, result.problem, gpu).ok) result.plan = narrow;
  }
  result.plan =
      with_splits(result.plan, v[kSplits] + 1, pick(kCombines, kCombine), result.problem, gpu);
  result.input = {.seed = seed, .lengths = LengthPattern::ragged};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases epilogue_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  constexpr int kOfBytes = 5, kOfByteGroups = 6;
  std::set<AxisPair> impossible;
  for (const int dataflow : {kOfBytes, kOfByteGroups}) {
    impossible.emplace(AxisValue{kDataflow, dataflow}, AxisValue{kBytes, 0});
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

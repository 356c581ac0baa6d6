#include <fmt/format.h>

#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kKeyBits,
  kValueBits,
  kKeyVector,
  kValueVector,
  kKeyResiduals,
  kValueResiduals,
  kKeyScope,
  kValueScope,
  kDType,
  kHeadDim,
  kBatch,
  kKvHeads,
  kTokens,
  kNewTokens,
  kWindow,
  kSinks,
  kSmooth,
  kHadamard,
  kKeyScales,
  kValueScales,
  kPlaces,
  kAlignment,
  kThreads,
  kSplits,
  kTokensPerBlock,
  kAlong,
  kSubVectors,
  kKeyLayout,
  kValueLayout,
  kPages,
  kOrder,
  kDataflow,
  kSequences,
  kRowTiles,
  kBasis,
  kValueDim,
};
constexpr std::array kKeyBitsOf{4, 8, 12, 0};  // 0: lattice codes
constexpr std::array kValueBitsOf{5, 10, 0};
constexpr int kKeyLattice = 3;
constexpr int kValueLattice = 2;
constexpr int kFragments = 1;
constexpr std::array kVectors{2, 4, 8};
constexpr std::array kResiduals{1, 2, 3};
constexpr std::array kHeadDims{80, 96, 112, 128, 160, 192, 256};  // append_test has 64
constexpr std::array kBatches{1, 4};
constexpr std::array kTokenCounts{1, 9, 40};
constexpr std::array kNewCounts{1, 2, 7};
constexpr std::array kWindows{Window{0},    Window{1},    Window{4},
                              Window{4, 3}, Window{9, 2}, Window{4, 1, 8}};
constexpr std::array kSinkCounts{0, 1, 3};
constexpr std::array kThreadCounts{32, 64, 128};
constexpr std::array kSplitCounts{1, 3, 128};
constexpr std::array kBlockTokens{1, 2, 4};
constexpr std::array kAlongs{1, 2, 4};
constexpr std::array kRuns{1, 3, 8};
constexpr std::array kBlockSequences{1, 2, 3};
constexpr std::array kTilesOfRows{2, 4};

// By Axis.
const std::vector<int> kSizes{4, 3, 3, 3, 3, 3, 3, 3, 2, 7, 2,      2,
                              3, 3, 6, 3, 2, 2, 3, 3, 2, 2, 3,      3,
                              3, 3, 3, 6, 6, 4, 5, 2, 3, 2, kBases, kValueDims.size()};

SweepCase make_case(const std::vector<int>& v, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  KvAppend op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.batch = pick(kBatches, kBatch),
              .kv_heads = v[kKvHeads] + 1,
              .head_dim = pick(kHeadDims, kHeadDim),
              .tokens = pick(kTokenCounts, kTokens),
              .new_tokens = pick(kNewCounts, kNewTokens),
              .recent_tokens = pick(kWindows, kWindow).slots,
              .sinks = pick(kSinkCounts, kSinks),
              .page_tokens = pick(kPageTokens, kPages),
              .raw_page_tokens = pick(kWindows, kWindow).page,
              .flush_block = pick(kWindows, kWindow).batch};
  set_value_dim(op.shape, v[kValueDim]);
  op.keys = cache_format(pick(kKeyBitsOf, kKeyBits), pick(kVectors, kKeyVector),
                         pick(kResiduals, kKeyResiduals), v[kKeyScope], op.shape.head_dim);
  op.values = cache_format(pick(kValueBitsOf, kValueBits), pick(kVectors, kValueVector),
                           pick(kResiduals, kValueResiduals), v[kValueScope], op.shape.value_dim());
  if (op.keys.entries() > 1024) op.shape.kv_heads = 1;  // which cost time alone
  op.keys.smooth = v[kSmooth] == 1;
  op.keys.hadamard = v[kHadamard] == 1;
  op.keys.stage_scales = v[kKeyScales] == 1;
  op.values.stage_scales = v[kValueScales] == 1;
  with_integers(op.keys, v[kKeyScales] == 2);
  with_integers(op.values, v[kValueScales] == 2);
  set_basis(op, v[kBasis]);
  op.keys.layout = pick(kLayouts, kKeyLayout);
  op.values.layout = pick(kLayouts, kValueLayout);

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  const AppendSimt lanes{
      .threads = pick(kThreadCounts, kThreads),
      .splits = vq::takes_slots(facts(op)) ? 1 : pick(kSplitCounts, kSplits),
      .tokens_per_block = std::min(pick(kBlockTokens, kTokensPerBlock), op.shape.new_tokens),
      .sequences_per_block = std::min(pick(kBlockSequences, kSequences), op.shape.batch),
      .warps_along_entries = pick(kAlongs, kAlong),
      .sub_vectors_per_warp = pick(kRuns, kSubVectors)};
  const AppendMma fragments{.threads = lanes.threads,
                            .splits = lanes.splits,
                            .tokens_per_block = lanes.tokens_per_block,
                            .sequences_per_block = lanes.sequences_per_block,
                            .row_tiles = pick(kTilesOfRows, kRowTiles)};
  result.plan = v[kDataflow] == kFragments ? Plan(fragments) : lanes;
  result.input = {.seed = seed,
                  .lengths = v[kPlaces] == 0 ? LengthPattern::full : LengthPattern::ragged,
                  .page_order = pick(kPageOrders, kOrder)};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases append_pairwise(std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const Axis transform : {kSmooth, kHadamard}) {
    exclude_rotations(impossible, {transform, 1}, kBasis);
  }
  exclude_orders(impossible, {kKeyLayout, kValueLayout, kPages, kOrder});
  exclude_raw_pages(impossible, kWindows, kWindow, kSinks, kSizes[kSinks]);
  exclude_formats(impossible, {kKeyBits, kKeyLattice, kKeyVector, kKeyScales});
  exclude_formats(impossible, {kValueBits, kValueLattice, kValueVector, kValueScales});
  impossible.emplace(AxisValue{kKeyBits, kKeyLattice}, AxisValue{kDataflow, kFragments});
  impossible.emplace(AxisValue{kValueBits, kValueLattice}, AxisValue{kDataflow, kFragments});
  // A block bounds the warps along the entries.
  for (int threads = 0; threads < kSizes[kThreads]; ++threads) {
    for (int along = threads + 1; along < kSizes[kAlong]; ++along) {
      impossible.emplace(AxisValue{kThreads, threads}, AxisValue{kAlong, along});
    }
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, own);
  });
}

}  // namespace vqgen::test

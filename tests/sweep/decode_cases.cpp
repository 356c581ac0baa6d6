#include <fmt/format.h>

#include "heuristics/check.h"
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
  kWindow,
  kSinks,
  kSmooth,
  kHadamard,
  kKeyScales,
  kValueScales,
  kLengths,
  kAlignment,
  kThreads,
  kTokensPerBlock,
  kKeyPlaces,
  kValuePlaces,
  kKeyLayout,
  kValueLayout,
  kPages,
  kOrder,
  kBasis,
  kValueDim,
};
constexpr std::array kKeyBitsOf{3, 8, 12, 0};  // 0: lattice codes
constexpr std::array kValueBitsOf{5, 10, 0};
constexpr int kKeyLattice = 3;
constexpr int kValueLattice = 2;
constexpr std::array kVectors{2, 4, 8};
constexpr std::array kResiduals{1, 2, 3};
constexpr std::array kHeadDims{80, 96, 64, 128, 256, 112, 160, 192};
constexpr std::array kBatches{1, 4};
constexpr std::array kTokenCounts{1, 9, 70};
constexpr std::array kWindows{Window{0}, Window{1}, Window{12}, Window{12, 5}, Window{12, 1, 8}};
constexpr std::array kSinkCounts{0, 1, 5};
constexpr std::array kThreadCounts{32, 96, 256};
constexpr std::array kBlockTokens{1, 6, 64};

// The number of values of each Axis.
const std::vector<int> kSizes{4,
                              3,
                              3,
                              3,
                              3,
                              3,
                              3,
                              3,
                              2,
                              8,
                              2,
                              2,
                              3,
                              5,
                              3,
                              2,
                              2,
                              3,
                              3,
                              2,
                              2,
                              3,
                              3,
                              kPlacements,
                              kPlacements,
                              6,
                              6,
                              4,
                              5,
                              kBases,
                              kValueDims.size()};

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  KvDequantize op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.batch = pick(kBatches, kBatch),
              .kv_heads = v[kKvHeads] + 1,
              .head_dim = pick(kHeadDims, kHeadDim),
              .tokens = pick(kTokenCounts, kTokens),
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
  DequantizeSimt plan{.threads = pick(kThreadCounts, kThreads),
                      .tokens_per_block = pick(kBlockTokens, kTokensPerBlock)};
  const DequantizeSimt without = plan;
  fix_placement(plan.key_codebook, op.keys, v[kKeyPlaces]);
  fix_placement(plan.value_codebook, op.values, v[kValuePlaces]);
  result.override_dropped = !check(plan, op, gpu).ok;
  result.plan = result.override_dropped ? without : plan;
  result.input = {.seed = seed,
                  .lengths = v[kLengths] == 0 ? LengthPattern::full : LengthPattern::ragged,
                  .page_order = pick(kPageOrders, kOrder)};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases dequantize_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const Axis transform : {kSmooth, kHadamard}) {
    exclude_rotations(impossible, {transform, 1}, kBasis);
  }
  exclude_orders(impossible, {kKeyLayout, kValueLayout, kPages, kOrder});
  exclude_raw_pages(impossible, kWindows, kWindow, kSinks, kSizes[kSinks]);
  exclude_formats(impossible, {kKeyBits, kKeyLattice, kKeyVector, kKeyScales});
  exclude_formats(impossible, {kValueBits, kValueLattice, kValueVector, kValueScales});
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

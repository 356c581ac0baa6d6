#include <algorithm>

#include "core/ceil_div.h"
#include "heuristics/choose.h"
#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kBits,
  kVector,
  kResiduals,
  kScope,
  kDType,
  kRows,
  kOutFeatures,
  kInFeatures,
  kOutputScales,
  kStageScales,
  kAlignment,
  kCodes,
  kLevel,
  kThreads,
  kBlockRows,
  kChunk,
  kLayout,
  kGroups,
};
constexpr std::array kBitsOf{2, 3, 5, 8, 12, 16, 0, -1, -2};
constexpr int kE8p = 6;    // lattice codes, which have vectors of 8 alone
constexpr int kSigns = 7;  // numbers of 8 and 10 bits with signs, in one stage
constexpr std::array kVectors{2, 4, 8};
constexpr std::array kOuts{1, 17, 101, 300};
constexpr std::array kIns{8, 36, 96, 520, 1000, 2048};
constexpr std::array kThreadCounts{32, 96, 512};
constexpr std::array kRowCounts{1, 4, 24, 64};
constexpr std::array kChunks{8, 240, 512, 4096};
// Inputs that share a scale, its bits, and whether it has a minimum beside it.
using GroupAxis = std::tuple<int, int, bool>;
constexpr std::array kGroupsOf{GroupAxis{0, 0, false},  GroupAxis{256, 0, false},
                               GroupAxis{16, 4, false}, GroupAxis{64, 3, false},
                               GroupAxis{16, 4, true},  GroupAxis{128, 0, true}};
const std::vector<int> kSizes{kBitsOf.size(),
                              kVectors.size(),
                              4,
                              kWeightScopes,
                              2,
                              3,
                              kOuts.size(),
                              kIns.size(),
                              2,
                              4,
                              2,
                              5,
                              kPlacements,
                              kThreadCounts.size(),
                              kRowCounts.size(),
                              kChunks.size(),
                              kLayouts.size(),
                              kGroupsOf.size()};

VqFormat weight_format(const std::vector<int>& v) {
  VqFormat format;
  format.vector_size = kVectors[static_cast<std::size_t>(v[kVector])];
  format.index_bits = v[kBits] == kE8p     ? 16
                      : v[kBits] >= kSigns ? 8 + 2 * (v[kBits] - kSigns) + format.vector_size
                                           : kBitsOf[static_cast<std::size_t>(v[kBits])];
  if (v[kBits] == kE8p) format.decoder = Decoder::e8p;
  if (v[kBits] >= kSigns) format.decoder = Decoder::signs;
  format.num_codebooks = v[kResiduals] + 1;
  format.output_scales = v[kOutputScales] == 1;
  format.stage_scales = v[kStageScales] == 1;
  with_integers(format, v[kStageScales] >= 2);
  format.common_scale = v[kStageScales] == 3;
  std::tie(format.group_inputs, format.group_scale_bits, format.group_minima) =
      kGroupsOf[static_cast<std::size_t>(v[kGroups])];
  format.layout = kLayouts[static_cast<std::size_t>(v[kLayout])];
  set_weight_scope(format, v[kScope], 64, 512);
  return format;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  WeightDequantize op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.out_features = pick(kOuts, kOutFeatures);
  op.shape.rows =
      std::array<std::int64_t, 3>{1, (op.shape.out_features + 1) / 2, op.shape.out_features}.at(
          static_cast<std::size_t>(v[kRows]));
  op.shape.in_features = pick(kIns, kInFeatures);
  op.weights = weight_format(v);
  const int whole = std::max(op.weights.group_scales().whole(), op.weights.vector_size);
  op.shape.in_features = ceil_div(op.shape.in_features, std::int64_t{whole}) * whole;

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  // The chunk that is wanted where the codebooks' columns allow it.
  WeightsSimt plan =
      std::get<WeightsSimt>(choose(result.problem, gpu, {.chooser = Chooser::rules}));
  const auto attempt = [&](auto&& change) {
    WeightsSimt changed = plan;
    change(changed);
    const bool fits = check(changed, op, gpu).ok;
    if (fits) plan = changed;
    return fits;
  };
  plan.threads = pick(kThreadCounts, kThreads);
  attempt([&](WeightsSimt& own) { own.chunk_columns = pick(kChunks, kChunk); });
  result.override_dropped =
      !attempt([&](WeightsSimt& own) { own.weight_rows = pick(kRowCounts, kBlockRows); });
  result.override_dropped |=
      !attempt([&](WeightsSimt& own) { fix_placement(own.codebook, op.weights, v[kLevel]); });
  result.plan = plan;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases weight_rows_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  exclude_formats(impossible, {kBits, kE8p, kVector, kStageScales});
  constexpr int kCommonScale = 3;  // of integers
  impossible.emplace(AxisValue{kBits, kE8p}, AxisValue{kStageScales, kCommonScale});
  impossible.emplace(AxisValue{kVector, 0}, AxisValue{kStageScales, kCommonScale});
  for (const int stages : {1, 2, 3}) {
    impossible.emplace(AxisValue{kBits, kSigns}, AxisValue{kResiduals, stages});
    impossible.emplace(AxisValue{kBits, kSigns + 1}, AxisValue{kResiduals, stages});
  }
  // No block has room for the copies of so many entries.
  for (const int bits : {4, 5}) {
    for (const int level : {5, 7}) {
      impossible.emplace(AxisValue{kBits, bits}, AxisValue{kLevel, level});
    }
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

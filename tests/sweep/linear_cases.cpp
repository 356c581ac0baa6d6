#include <algorithm>

#include "tests/sweep/cases.h"
#include "tests/sweep/linear_variants.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

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
  kOutputsPerWarp,
  kChunk,
  kDataflow,
  kSplits,
  kShape,
  kFusion,
  kCombine,
  kLayout,
  kIntegers,
  kGroups,
};
constexpr int kBitCount = 15;     // index_bits 2..16 of a table, and then
constexpr int kE8p = kBitCount;   // lattice codes, which have vectors of 8 alone, and
constexpr int kSigns = kE8p + 1;  // numbers of 8, 9 and 10 bits with signs, in one stage
constexpr int kLastSigns = kSigns + 2;
constexpr int kFragments = 1;   // dataflow mma
constexpr int kTables = 2;      // dataflow lut
constexpr int kWarpgroups = 3;  // dataflow wgmma
constexpr int kSlices = 4;      // dataflow sliced_codebook
constexpr int kRowgroups = 5;   // dataflow wgmma_large_m
constexpr int kMostTableBits = 9;

// Inputs that share a scale, and its bits.
using GroupAxis = std::tuple<int, int, bool>;
constexpr std::array kGroupsOf{GroupAxis{0, 0, false},  GroupAxis{256, 0, false},
                               GroupAxis{16, 4, false}, GroupAxis{32, 4, false},
                               GroupAxis{64, 3, false}, GroupAxis{16, 4, true},
                               GroupAxis{64, 3, true},  GroupAxis{32, 0, true}};

constexpr std::array kVectors{2, 4, 8};
constexpr int kGemvs = 4;
constexpr std::array kRowsOf{1, 2, 5, 8, 2, 9, 31, 100};  // of GEMV, and then of GEMM
constexpr std::array kOuts{1, 15, 16, 17, 101, 300};
constexpr std::array kIns{8, 64, 96, 520, 1000, 2048};
const std::vector<int> kSizes{kLastSigns + 1,
                              3,
                              4,
                              kWeightScopes,
                              2,
                              kRowsOf.size(),
                              6,
                              6,
                              2,
                              2,
                              4,
                              5,
                              kPlacements,
                              4,
                              3,
                              6,
                              3,
                              8,
                              3,
                              3,
                              kLayouts.size(),
                              2,
                              kGroupsOf.size()};

VqFormat weight_format(const std::vector<int>& v) {
  VqFormat format;
  format.vector_size = kVectors[static_cast<std::size_t>(v[kVector])];
  format.index_bits = v[kBits] == kE8p     ? 16
                      : v[kBits] >= kSigns ? 8 + v[kBits] - kSigns + format.vector_size
                                           : v[kBits] + 2;
  if (v[kBits] == kE8p) format.decoder = Decoder::e8p;
  if (v[kBits] >= kSigns) format.decoder = Decoder::signs;
  format.num_codebooks = v[kResiduals] + 1;
  format.output_scales = v[kOutputScales] == 1;
  format.stage_scales = v[kStageScales] == 1;
  with_integers(format, v[kIntegers] == 1);
  std::tie(format.group_inputs, format.group_scale_bits, format.group_minima) =
      kGroupsOf[static_cast<std::size_t>(v[kGroups])];
  format.layout = kLayouts[static_cast<std::size_t>(v[kLayout])];
  set_weight_scope(format, v[kScope], 256, format.entries() > 1024 ? 1024 : 256);
  return format;
}

// The plan of the case, without the groups of overrides that check() refuses.
Plan make_plan(const std::vector<int>& v, const Problem& problem, const Linear& op,
               const GpuSpec& gpu, bool& dropped) {
  Plan plan = choose(problem, gpu, {.chooser = Chooser::rules});
  const auto attempt = [&](const Plan& changed) {
    const bool fits = check(changed, problem, gpu).ok;
    if (fits) plan = changed;
    return fits;
  };
  // Changes the plan if it has the field.
  const auto change = [&](const auto& apply) {
    Plan changed = plan;
    if (change_own(changed, apply) && !attempt(changed)) dropped = true;
  };
  const auto take = [&](const Plan& first) { dropped = !attempt(first); };
  if (v[kDataflow] == kFragments) take(rules_plan(LinearMma{}, problem, gpu));
  if (v[kDataflow] == kWarpgroups) take(rules_plan(LinearWgmma{}, problem, gpu));
  if (v[kDataflow] == kRowgroups) take(rules_plan(LinearWgmmaLargeM{}, problem, gpu));
  if (v[kDataflow] == kTables) {
    dropped = !attempt(LinearLut{.threads = v[kShape] % 2 == 0 ? 128 : 256,
                                 .outputs_per_warp = std::array{4, 12, 16, 32}.at(
                                     static_cast<std::size_t>(v[kOutputsPerWarp])),
                                 .rows_per_block = 4});
    change([&](LinearLut& own) { own.sub_vectors_per_lane <<= v[kChunk]; });
  }
  if (v[kDataflow] == kSlices) {
    dropped = !attempt(rules_plan(LinearSlicedCodebook{}, problem, gpu));
    change([&](LinearSlicedCodebook& own) { vary(own, op, v[kShape]); });
  }
  change(
      [&](auto& own) requires requires { own.codebook = Placement{}; } {
        fix_placement(own.codebook, op.weights, v[kLevel]);
      });
  change([&](LinearMma& own) { vary(own, v[kShape]); });
  change([&](LinearMma& own) { own.fusion = static_cast<LinearFusion>(v[kFusion]); });
  change([&](LinearWgmma& own) { vary(own, v[kShape]); });
  change([&](LinearWgmmaLargeM& own) { vary(own, v[kShape]); });
  change([&](LinearWgmmaLargeM& own) {
    own.groups_along_columns = 1 + v[kShape] % 2;
    own.prepack_x = v[kShape] / 2 % 2;
  });
  change([&](LinearSimt& own) {
    if (v[kOutputsPerWarp] > 0) own.outputs_per_warp = v[kOutputsPerWarp];
    if (v[kChunk] == 1) own.chunk_columns = 64;
    if (v[kChunk] == 2) own.chunk_columns = 160;
  });
  if (v[kSplits] > 0) {
    change(
        [&](auto& own) requires requires { own.splits; } {
          own.splits = v[kSplits];
          if constexpr (requires { own.kMayCluster; }) own.combine = Combine::kernel;
        });
  }
  if (v[kCombine] > 0) {  // 2: in a cluster, if the dataflow can
    change(
        [&](auto& own) requires requires { own.combine = Combine{}; } {
          if constexpr (requires { own.splits; }) own.splits = std::max(own.splits, 2);
          own.combine = Combine::last_block;
          if constexpr (requires { own.kMayCluster; }) {
            if (v[kCombine] == 2) own.combine = Combine::cluster;
          }
        });
  }
  return plan;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.rows = kRowsOf[static_cast<std::size_t>(v[kRows])];
  op.shape.out_features = kOuts[static_cast<std::size_t>(v[kOutFeatures])];
  op.shape.in_features = kIns[static_cast<std::size_t>(v[kInFeatures])];
  op.weights = weight_format(v);
  if (const int whole = op.weights.group_scales().whole(); whole > 0) {
    op.shape.in_features = ceil_div(op.shape.in_features, std::int64_t{whole}) * whole;
  }

  SweepCase result;
  result.problem = v[kRows] < kGemvs ? Problem(Gemv{op}) : Problem(Gemm{op});
  validate(result.problem, "sweep");
  result.plan = make_plan(v, result.problem, op, gpu, result.override_dropped);
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases linear_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const int vector : {0, 1})
    impossible.emplace(AxisValue{kBits, kE8p}, AxisValue{kVector, vector});
  impossible.emplace(AxisValue{kBits, kE8p}, AxisValue{kIntegers, 1});
  impossible.emplace(AxisValue{kVector, 0}, AxisValue{kIntegers, 1});
  for (std::size_t gemm = kGemvs; gemm < kRowsOf.size(); ++gemm) {  // only with tensor cores
    for (int dataflow = 0; dataflow < kSizes[kDataflow]; ++dataflow) {
      if (dataflow == kFragments || dataflow == kWarpgroups || dataflow == kRowgroups) continue;
      impossible.emplace(AxisValue{kRows, static_cast<int>(gemm)}, AxisValue{kDataflow, dataflow});
    }
  }
  // No block has room for larger tables, and no table serves units across which a chunk extends.
  for (int bits = kMostTableBits - 1; bits <= kLastSigns; ++bits) {
    impossible.emplace(AxisValue{kBits, bits}, AxisValue{kDataflow, kTables});
  }
  for (const int scope : {2, 3})
    impossible.emplace(AxisValue{kScope, scope}, AxisValue{kDataflow, kTables});
  // No block has room for 16 copies of all entries, or 4 copies of half of them.
  for (int bits = 10; bits < kBitCount; ++bits) {
    impossible.emplace(AxisValue{kBits, bits}, AxisValue{kLevel, 7});
    if (bits >= 12) impossible.emplace(AxisValue{kBits, bits}, AxisValue{kLevel, 5});
  }
  // A sub-vector's codes that do not divide a word.
  for (int bits = 2; bits <= 16; ++bits) {
    if ((bits & (bits - 1)) != 0)
      impossible.emplace(AxisValue{kBits, bits - 2}, AxisValue{kDataflow, kSlices});
  }
  for (int bits = kE8p; bits <= kLastSigns; ++bits) {
    impossible.emplace(AxisValue{kBits, bits}, AxisValue{kDataflow, kSlices});
    for (int stages = 1; stages <= 3 && bits >= kSigns; ++stages) {
      impossible.emplace(AxisValue{kBits, bits}, AxisValue{kResiduals, stages});
    }
  }
  impossible.emplace(AxisValue{kResiduals, 2}, AxisValue{kDataflow, kSlices});
  for (int groups = 1; groups < static_cast<int>(kGroupsOf.size()); ++groups) {
    for (const int dataflow : {kTables, kSlices}) {
      impossible.emplace(AxisValue{kGroups, groups}, AxisValue{kDataflow, dataflow});
    }
  }
  // Fields that plans of these dataflows lack.
  for (int level = 1; level < kPlacements; ++level) {
    impossible.emplace(AxisValue{kLevel, level}, AxisValue{kDataflow, kSlices});
  }
  for (const int value : {1, 2}) {
    for (const int dataflow : {kTables, kSlices}) {
      impossible.emplace(AxisValue{kDataflow, dataflow}, AxisValue{kSplits, value});
    }
    for (const int dataflow : {kTables, kWarpgroups, kSlices, kRowgroups}) {
      impossible.emplace(AxisValue{kDataflow, dataflow}, AxisValue{kFusion, value});
    }
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

std::vector<SweepCase> gemv_product(const GpuSpec& gpu, std::uint64_t seed) {
  std::vector<SweepCase> cases;
  for (int bits = 0; bits <= kE8p; ++bits) {
    for (int vector = bits == kE8p ? 2 : 0; vector < 3; ++vector) {
      for (int num_codebooks = 0; num_codebooks < 4; ++num_codebooks) {
        const int turn = static_cast<int>(cases.size());
        std::vector<int> v(kSizes.size(), 0);
        v[kBits] = bits;
        v[kVector] = vector;
        v[kResiduals] = num_codebooks;
        v[kScope] = turn % 5;
        v[kDType] = turn % 2;
        v[kRows] = 1;
        v[kOutFeatures] = 3;
        v[kInFeatures] = 3;
        v[kOutputScales] = turn / 2 % 2;
        if (vector > 0 && bits != kE8p) v[kIntegers] = turn / 3 % 2;
        v[kDataflow] = turn % 3;
        v[kFusion] = turn / 3 % 3;
        v[kLayout] = turn / 9 % static_cast<int>(kLayouts.size());
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

std::vector<SweepCase> slices_product(const GpuSpec& gpu, std::uint64_t seed) {
  std::vector<SweepCase> cases;
  for (const int bits : {2, 4, 8, 16}) {
    for (int vector = 0; vector < 3; ++vector) {
      for (const int num_codebooks : {1, 2, 4}) {
        if (num_codebooks * bits > 32) continue;
        const int turn = static_cast<int>(cases.size());
        std::vector<int> v(kSizes.size(), 0);
        v[kBits] = bits - 2;
        v[kVector] = vector;
        v[kResiduals] = num_codebooks - 1;
        v[kScope] = bits == 16 ? turn % 5 : 0;
        v[kDType] = turn % 2;
        v[kRows] = turn % kGemvs;
        v[kOutFeatures] = turn % 6;
        v[kInFeatures] = 3 + turn % 3;
        v[kOutputScales] = turn / 2 % 2;
        v[kStageScales] = turn / 3 % 2;
        v[kAlignment] = turn % 4;
        v[kCodes] = turn % 5;
        if (vector > 0) v[kIntegers] = turn / 4 % 2;
        v[kDataflow] = kSlices;
        v[kShape] = turn % 8;
        v[kCombine] = turn / 2 % 2;
        v[kLayout] = turn / 5 % static_cast<int>(kLayouts.size());
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

}  // namespace vqgen::test

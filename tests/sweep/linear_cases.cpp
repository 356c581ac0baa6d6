#include "core/check.h"
#include "heuristics/choose.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/pairwise.h"

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
};
constexpr int kBitCount = 15;
const std::vector<int> kSizes{kBitCount, 3, 4, 5, 2, 5, 6, 6, 2, 2, 4, 5, kPlacements, 4, 3};

constexpr std::array kVectors{2, 4, 8};
constexpr std::array kRowCounts{1, 2, 3, 5, 8};
constexpr std::array kOuts{1, 15, 16, 17, 101, 300};
constexpr std::array kIns{8, 64, 96, 520, 1000, 2048};

VqFormat weight_format(const std::vector<int>& v) {
  VqFormat format;
  format.index_bits = v[kBits] + 2;
  format.vector_size = kVectors[static_cast<std::size_t>(v[kVector])];
  format.residuals = v[kResiduals] + 1;
  format.output_scales = v[kOutputScales] == 1;
  format.stage_scales = v[kStageScales] == 1;
  const bool large = format.index_bits > 10;  // narrow units would take more memory than a test may
  switch (v[kScope]) {
    case 1:
      format.scope = Scope::channel_group;
      format.group_channels = large ? 512 : format.vector_size;
      break;
    case 2:
      format.scope = Scope::channel_group;
      format.group_channels = large ? 1024 : 48;
      break;
    case 3:
      format.scope = Scope::tile;
      format.tile_rows = large ? 256 : 24;
      format.tile_columns = large ? 1024 : 40;
      break;
    case 4:
      format.scope = Scope::tile;
      format.tile_rows = 256;
      format.tile_columns = large ? 1024 : 256;
      break;
    default:
      break;
  }
  return format;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  Gemv op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.rows = kRowCounts[static_cast<std::size_t>(v[kRows])];
  op.shape.out_features = kOuts[static_cast<std::size_t>(v[kOutFeatures])];
  op.shape.in_features = kIns[static_cast<std::size_t>(v[kInFeatures])];
  op.weights = weight_format(v);

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  LinearPlan plan = std::get<LinearPlan>(choose(result.problem, gpu));
  result.plan = plan;
  fix_placement(plan.codebook, op.weights, v[kLevel]);
  if (check(plan, result.problem, gpu).ok) result.plan = plan;
  if (v[kOutputsPerWarp] > 0) plan.outputs_per_warp = v[kOutputsPerWarp];
  if (v[kChunk] == 1) plan.chunk_columns = 64;
  if (v[kChunk] == 2) plan.chunk_columns = 160;
  result.override_dropped = !check(plan, result.problem, gpu).ok;
  if (!result.override_dropped) result.plan = plan;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  const auto alignment = static_cast<std::size_t>(v[kAlignment]);
  result.misalignment = {alignment, alignment};
  for (const int value : v) result.name += (result.name.empty() ? "" : "-") + std::to_string(value);
  return result;
}

}  // namespace

SweepCases gemv_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  const Pairwise pairwise(kSizes, {}, seed);
  SweepCases result;
  result.pairs = pairwise.pairs();
  result.uncovered = pairwise.uncovered();
  for (const auto& values : pairwise.cases()) {
    result.cases.push_back(make_case(values, gpu, seed + result.cases.size()));
  }
  return result;
}

std::vector<SweepCase> gemv_product(const GpuSpec& gpu, std::uint64_t seed) {
  std::vector<SweepCase> cases;
  for (int bits = 0; bits < kBitCount; ++bits) {
    for (int vector = 0; vector < 3; ++vector) {
      for (int residuals = 0; residuals < 4; ++residuals) {
        const int turn = static_cast<int>(cases.size());
        std::vector<int> v(kSizes.size(), 0);
        v[kBits] = bits;
        v[kVector] = vector;
        v[kResiduals] = residuals;
        v[kScope] = turn % 5;
        v[kDType] = turn % 2;
        v[kRows] = 1;
        v[kOutFeatures] = 3;
        v[kInFeatures] = 3;
        v[kOutputScales] = turn / 2 % 2;
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

}  // namespace vqgen::test

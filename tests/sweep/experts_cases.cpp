// Cases of MoE GEMMs: all dataflows over numbers of experts, few to all rows, and formats.
#include "heuristics/check.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum Axis {
  kDataflow,
  kFormat,
  kExperts,
  kRows,
  kTotal,
  kOutFeatures,
  kInFeatures,
  kDType,
  kOutputScales,
  kSplits,
  kCombine,
  kLayout,
  kLengths,
};
enum Format { kPairs, kBytes, kLattice, kTiles, kGroups, kWide, kSigned, kScaled, kLong, kAffine };
constexpr std::array kExpertsOf{1, 3, 8, 40, 128};
constexpr std::array kRowsOf{1, 2, 5, 8, 13, 33};
constexpr std::array kOuts{1, 16, 101};
constexpr std::array kIns{64, 520, 1000};
constexpr std::array kLayoutsOf{CodeLayout{1, 1}, CodeLayout{4, 1}, CodeLayout{2, 2}};
// The number of values of each Axis.
const std::vector<int> kSizes{kLinearDataflows,  10, 5, 6, 3, 3, 3, 2, 2, 3, 2,
                              kLayoutsOf.size(), 2};

// The formats of aqlm-2x8, aqlm-2x8i8, quip-4 and gptvq-2; one with a codebook per channel group;
// one whose entries exceed shared memory; one with signs; one with
// scales of groups of inputs; the formats of iq2-xs and q2-k.
VqFormat format_of(const std::vector<int>& v) {
  VqFormat format{.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  switch (v[kFormat]) {
    case kBytes:
      with_integers(format, true);
      format.common_scale = true;
      break;
    case kLattice:
      format.decoder = Decoder::e8p;
      format.index_bits = 16;
      format.stage_scales = true;
      break;
    case kTiles:
      format = {.vector_size = 2, .index_bits = 4, .num_codebooks = 1, .scope = Scope::tile};
      format.tile_rows = 256;
      format.tile_columns = 256;
      break;
    case kGroups:
      format.scope = Scope::channel_group;
      format.group_channels = 256;
      format.stage_scales = true;
      break;
    case kWide:
      format.index_bits = 16;
      format.num_codebooks = 1;
      break;
    case kScaled:
      format.group_inputs = 64;
      format.group_scale_bits = 4;
      break;
    case kLong:
      format = {.vector_size = 8, .index_bits = 17};
      format.decoder = Decoder::signs;
      with_integers(format, true);
      format.group_inputs = 16;
      format.group_scale_bits = 4;
      break;
    case kAffine:
      format = {.vector_size = 4, .index_bits = 8};
      format.group_inputs = 16;
      format.group_scale_bits = 4;
      format.group_minima = true;
      break;
    case kSigned:
      format = {.vector_size = 4, .index_bits = 12};
      format.decoder = Decoder::signs;
      with_integers(format, true);
      break;
    default:
      break;
  }
  format.output_scales = v[kOutputScales] == 1;
  format.layout = kLayoutsOf[static_cast<std::size_t>(v[kLayout])];
  return format;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  LinearShape& shape = op.shape;
  shape = {.rows = kRowsOf[static_cast<std::size_t>(v[kRows])],
           .out_features = kOuts[static_cast<std::size_t>(v[kOutFeatures])],
           .in_features = kIns[static_cast<std::size_t>(v[kInFeatures])],
           .experts = kExpertsOf[static_cast<std::size_t>(v[kExperts])]};
  // Only as many as a test has time for.
  const int all = shape.experts * shape.rows;
  const int totals[] = {std::min(all, 64), shape.rows, std::min(all, shape.rows + 9)};
  shape.total_rows = std::max(totals[v[kTotal]], shape.rows);
  op.weights = format_of(v);
  if (op.weights.group_inputs > 0) shape.in_features = ceil_div(shape.in_features, 256) * 256;

  SweepCase result = product_case(op, v[kDataflow], gpu);
  constexpr std::array kCombines{Combine::kernel, Combine::last_block};
  result.plan =
      with_splits(result.plan, v[kSplits] + 1, kCombines.at(static_cast<std::size_t>(v[kCombine])),
                  result.problem, gpu);
  result.input = {.seed = seed,
                  .lengths = v[kLengths] == 0 ? LengthPattern::ragged : LengthPattern::full};
  if (v[kLengths] == 1) result.input.active_experts = 1 + static_cast<int>(seed % 3);
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases experts_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  constexpr int kTables = 2, kSlices = 4, kOfBytes = 5, kOfByteGroups = 6;
  std::set<AxisPair> impossible;
  for (const int format : {kPairs, kLattice, kTiles, kGroups, kWide, kScaled, kLong, kAffine}) {
    for (const int dataflow : {kOfBytes, kOfByteGroups}) {
      impossible.emplace(AxisValue{kDataflow, dataflow}, AxisValue{kFormat, format});
    }
  }
  for (const int format : {kLattice, kWide, kSigned, kScaled, kLong, kAffine}) {
    impossible.emplace(AxisValue{kDataflow, kTables}, AxisValue{kFormat, format});
  }
  for (const int format : {kLattice, kSigned, kScaled, kLong, kAffine}) {
    impossible.emplace(AxisValue{kDataflow, kSlices}, AxisValue{kFormat, format});
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

// int8_quantize and int8_dequantize.
#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kWork,  // quantize, quantize with its scales, dequantize
  kDType,
  kTokens,
  kChannels,
  kShape,  // form, vector and tokens of the plan
  kBlock,  // threads and lanes
  kSplits,
  kData,
  kAlignment,
};
constexpr std::array kTokenCounts{1, 7, 150};
// One channel; a count that no vector divides; half vectors; a tail after whole vectors; whole
// vectors.
constexpr std::array kChannelCounts{1, 67, 70, 136, 256};

struct Shape {
  ScalarForm form;
  int vector;
  int tokens;
};
constexpr std::array kShapes{
    Shape{ScalarForm::naive, 1, 1},      Shape{ScalarForm::tiled, 1, 1},
    Shape{ScalarForm::coarsened, 1, 2},  Shape{ScalarForm::coarsened, 1, 5},
    Shape{ScalarForm::vectorized, 2, 2}, Shape{ScalarForm::vectorized, 4, 1},
    Shape{ScalarForm::vectorized, 4, 3}, Shape{ScalarForm::vectorized, 8, 2},
    Shape{ScalarForm::vectorized, 16, 1}};
struct Block {
  int threads;
  int lanes;
};
constexpr std::array kBlocks{Block{32, 32}, Block{96, 3}, Block{128, 1}, Block{128, 64}};
constexpr std::array kSplitCounts{1, 2, 9};

// The number of values of each Axis.
const std::vector<int> kSizes{3, 3, 3, 5, 9, 4, 3, 2, 2};

SweepCase make_case(const std::vector<int>& v, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  ScalarMatrix matrix;
  matrix.dtype = static_cast<vq::Real>(v[kDType]);
  matrix.shape = {.tokens = pick(kTokenCounts, kTokens),
                  .channels = pick(kChannelCounts, kChannels),
                  .scales = v[kWork] == 1 ? Scales::computed : Scales::given};
  SweepCase result;
  result.problem = v[kWork] == 2 ? Problem(Int8Dequantize(matrix)) : Problem(Int8Quantize{matrix});
  validate(result.problem, "sweep");
  const Shape shape = pick(kShapes, kShape);
  const Block block = pick(kBlocks, kBlock);
  const ScalarForms plan{.form = shape.form,
                         .threads = block.threads,
                         .lanes = block.lanes,
                         .vector = shape.vector,
                         .tokens = shape.tokens,
                         .splits = v[kWork] == 1 ? pick(kSplitCounts, kSplits) : 1};
  result.plan = plan;
  result.input = {.seed = seed,
                  .lengths = v[kData] == 0 ? LengthPattern::full : LengthPattern::ragged};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases matrix_pairwise(std::uint64_t seed) {
  return cases_of_pairs(kSizes, {}, seed, make_case);
}

}  // namespace vqgen::test

// Cases of dataflow bytes: products of entries whose sums over the stages are bytes.
#include "core/ceil_div.h"
#include "heuristics/check.h"
#include "tests/sweep/cases.h"

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
  kAlignment,
  kCodes,
  kLayout,
  kPlaces,
  kThreads,
  kAlong,
  kOutputs,
  kChunkRuns,
  kRowsPerBlock,
  kCodeWords,
  kSplits,
  kCombine,
};
constexpr std::array kBitsOf{8, 2, 5, 10};
constexpr std::array kVectors{8, 4};
constexpr std::array kRowsOf{1, 3, 4, 5, 8, 13, 33};
constexpr std::array kOuts{1, 16, 101, 300};
constexpr std::array kIns{8, 64, 520, 1000, 2048, 4096};
constexpr std::array kPlacesOf{1, 8, 16};
constexpr std::array kThreadsOf{32, 64, 96, 256};
constexpr std::array kAlongOf{1, 2, 8};
constexpr std::array kOutputsOf{16, 32, 48};
constexpr std::array kRuns{1, 2, 3, 8};
// Rows of a product, and of a block.
constexpr std::array kBlocks{std::pair{4, 4}, std::pair{4, 8}, std::pair{8, 8}, std::pair{8, 24}};
constexpr std::array kWordsOf{1, 2, 4};

// By Axis.
const std::vector<int> kSizes{4, 2, 4, 3, 2, 7, 4, 6, 2, 4, 5, kLayouts.size(),
                              3, 4, 3, 3, 4, 4, 3, 3, 2};

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.rows = pick(kRowsOf, kRows),
              .out_features = pick(kOuts, kOutFeatures),
              .in_features = pick(kIns, kInFeatures)};
  op.weights.vector_size = pick(kVectors, kVector);
  op.weights.index_bits = pick(kBitsOf, kBits);
  op.weights.residuals = v[kResiduals] + 1;
  op.weights.output_scales = v[kOutputScales] == 1;
  op.weights.layout = pick(kLayouts, kLayout);
  with_integers(op.weights, true);
  op.weights.common_scale = true;
  if (v[kScope] == 1) {
    op.weights.scope = Scope::channel_group;
    op.weights.group_channels = 1024;
  } else if (v[kScope] == 2) {
    op.weights.scope = Scope::tile;
    op.weights.tile_rows = 1536;
    op.weights.tile_columns = 1024;
  }

  SweepCase result;
  result.problem = op.shape.rows <= 8 ? Problem(Gemv{op}) : Problem(Gemm{op});
  validate(result.problem, "sweep");
  LinearBytes plan{.threads = pick(kThreadsOf, kThreads), .outputs_per_warp = 16};
  plan.product_rows = pick(kBlocks, kRowsPerBlock).first;
  plan.rows_per_block = pick(kBlocks, kRowsPerBlock).second;
  plan.codebook = all_shared(op.weights.entries());
  plan.code_words = 1;
  const auto with_chunk = [&](LinearBytes changed, int runs) {
    changed.chunk_columns = runs * vq::run_columns(configured(changed, op));
    return changed;
  };
  plan = with_chunk(plan, 1);
  if (!check(plan, result.problem, gpu).ok) plan.threads = 256;  // which fetch more rows
  // Each that check() refuses is dropped.
  bool taken = false;
  const auto attempt = [&](const LinearBytes& changed) {
    if (!check(changed, result.problem, gpu).ok) return;
    plan = changed;
    taken = true;
  };
  const auto change = [&](int LinearBytes::*field, int value) {
    LinearBytes changed = plan;
    changed.*field = value;
    attempt(changed);
  };
  LinearBytes wide = plan;
  wide.code_words = pick(kWordsOf, kCodeWords);
  attempt(with_chunk(wide, 1));
  change(&LinearBytes::outputs_per_warp, pick(kOutputsOf, kOutputs));
  if (plan.threads / 32 % pick(kAlongOf, kAlong) == 0) {
    change(&LinearBytes::warps_along_columns, pick(kAlongOf, kAlong));
  }
  attempt(with_chunk(plan, pick(kRuns, kChunkRuns)));
  const std::int64_t chunks = ceil_div(op.shape.in_features, std::int64_t{plan.chunk_columns});
  change(&LinearBytes::splits, static_cast<int>(std::min<std::int64_t>(chunks, v[kSplits] + 1)));
  if (v[kCombine] == 1 && plan.splits > 1) {
    LinearBytes last = plan;
    last.combine = Combine::last_block;
    attempt(last);
  }
  if (v[kPlaces] > 0) {
    LinearBytes copied = plan;
    copied.codebook = all_replicated(op.weights.entries(), pick(kPlacesOf, kPlaces));
    attempt(copied);
  }
  result.override_dropped = !taken;
  result.plan = plan;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  const auto alignment = static_cast<std::size_t>(v[kAlignment]);
  result.misalignment = {alignment, alignment * std::max(static_cast<std::size_t>(plan.code_words),
                                                         aligned_words(op.weights.layout))};
  if (op.shape.in_features % 8 == 0) result.misalignment.elements = alignment * 8;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases bytes_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (int bits = 0; bits < static_cast<int>(kBitsOf.size()); ++bits) {
    // 10 bits in 16 copies take 128 KiB a stage.
    if (kBitsOf[static_cast<std::size_t>(bits)] != 10) continue;
    for (const int places : {1, 2}) impossible.insert({{kBits, bits}, {kPlaces, places}});
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

// Cases of int8_mma, int8_wgmma and wgmma_large_m: GEMMs with entries whose sums over the stages
// are bytes.
#include <tuple>

#include "core/ceil_div.h"
#include "heuristics/check.h"
#include "tests/sweep/cases.h"
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
  kDataflow,
  kMaking,
  kGroups,
};
constexpr std::array kBitsOf{8, 2, 5, 10, 7, 8};
constexpr int kSigns = 4;  // of these, from here on: bits below signs, in one stage
constexpr std::array kVectors{8, 4};
constexpr std::array kRowsOf{1, 3, 4, 5, 8, 13, 33};
constexpr std::array kOuts{1, 16, 101, 300};
constexpr std::array kIns{8, 64, 520, 1000, 2048, 4096};
constexpr std::array kPlacesOf{1, 8, 16};
constexpr std::array kThreadsOf{32, 64, 96, 256};
constexpr std::array kAlongOf{1, 2, 8};
constexpr std::array kOutputsOf{16, 32, 48};
constexpr std::array kRuns{1, 2, 3, 8};
// Rows of a GEMM, and of a block.
constexpr std::array kBlocks{std::pair{4, 4}, std::pair{4, 8}, std::pair{8, 8}, std::pair{8, 24}};
constexpr std::array kWordsOf{1, 2, 4};
// Inputs of a scale of int8_mma, and the bits of scales in blocks.
constexpr std::array kGroupsOf{std::pair{0, 0}, std::pair{0, 0}, std::pair{16, 0}, std::pair{32, 4},
                               std::pair{256, 0}};

// The number of values of each Axis.
const std::vector<int> kSizes{6, 2, 4, 3, 2, 7, 4, 6, 2, 4, 5, kLayouts.size(),
                              3, 4, 3, 3, 4, 4, 3, 3, 3, 5, 4, 5};
// Other cases cover wgmma_large_m.
enum Dataflow { kBytes, kBytegroups, kRowgroups };
constexpr std::array kDataflows{kBytes, kBytegroups, kRowgroups, kBytes, kBytegroups};

const auto& pick(const auto& values, const std::vector<int>& v, Axis axis) {
  return values[static_cast<std::size_t>(v[axis])];
}

// Applies each change of a plan that check() accepts.
template <class P>
class Attempts {
 public:
  Attempts(P first, const Linear& op, const Problem& problem, const GpuSpec& gpu)
      : plan(first), op_(op), problem_(problem), gpu_(gpu) {
    to_runs(plan, 1);
  }
  void attempt(const P& changed) {
    if (check(changed, problem_, gpu_).ok) plan = changed;
  }
  void change(int P::*field, int value) {
    P changed = plan;
    changed.*field = value;
    attempt(changed);
  }
  void chunk_of(int runs) {
    P changed = plan;
    to_runs(changed, runs);
    attempt(changed);
  }
  void words(int count) {
    P changed = plan;
    changed.code_words = count;
    to_runs(changed, 1);
    attempt(changed);
  }
  void split(int splits, int combine) {
    const std::int64_t chunks = ceil_div(op_.shape.in_features, std::int64_t{plan.chunk_columns});
    change(&P::splits, static_cast<int>(std::min<std::int64_t>(chunks, splits)));
    if (combine == 0 || plan.splits == 1) return;
    P merging = plan;
    merging.combine = Combine::last_block;
    if constexpr (requires { P::kMayCluster; }) merging.combine = static_cast<Combine>(combine);
    attempt(merging);
  }
  void copies(int count) {
    if (count == 1) return;
    P copied = plan;
    copied.codebook = all_replicated(op_.weights.entries(), count);
    attempt(copied);
  }

  P plan;

 private:
  void to_runs(P& changed, int runs) const {
    changed.chunk_columns = runs * vq::run_columns(configured(changed, op_));
  }
  const Linear& op_;
  const Problem& problem_;
  const GpuSpec& gpu_;
};

LinearInt8Mma bytes_plan(const std::vector<int>& v, const Linear& op, const Problem& problem,
                         const GpuSpec& gpu) {
  LinearInt8Mma first{.threads = pick(kThreadsOf, v, kThreads), .outputs_per_warp = 16};
  std::tie(first.product_rows, first.rows_per_block) = op.weights.group_inputs > 0
                                                           ? std::pair{1, 1 + v[kRowsPerBlock] % 2}
                                                           : pick(kBlocks, v, kRowsPerBlock);
  first.codebook = all_shared(op.weights.entries());
  first.code_words = 1;
  Attempts<LinearInt8Mma> to(first, op, problem, gpu);
  to.words(pick(kWordsOf, v, kCodeWords));
  to.change(&LinearInt8Mma::outputs_per_warp, pick(kOutputsOf, v, kOutputs));
  if (to.plan.threads / 32 % pick(kAlongOf, v, kAlong) == 0) {
    to.change(&LinearInt8Mma::warps_along_columns, pick(kAlongOf, v, kAlong));
  }
  to.change(&LinearInt8Mma::prepack_x, v[kMaking] == 1 ? 1 : 0);
  to.chunk_of(pick(kRuns, v, kChunkRuns));
  to.split(v[kSplits] + 1, v[kCombine]);
  to.copies(pick(kPlacesOf, v, kPlaces));
  LinearInt8Mma made = to.plan;  // by one or two producer warps
  made.producer_warps = v[kMaking] < 2 ? 0 : v[kMaking] - 1;
  made.threads += 32 * made.producer_warps;
  to.attempt(made);
  return to.plan;
}

LinearInt8Wgmma groups_plan(const std::vector<int>& v, const Linear& op, const Problem& problem,
                            const GpuSpec& gpu) {
  LinearInt8Wgmma first{.threads = pick(kThreadsOf, v, kThreads) < 96 ? 128 : 256};
  first.rows_per_block = 8 << v[kRowsPerBlock];
  first.codebook = all_shared(op.weights.entries());
  first.code_words = 1;
  Attempts<LinearInt8Wgmma> to(first, op, problem, gpu);
  to.chunk_of(2);  // a run may be a single step
  to.words(pick(kWordsOf, v, kCodeWords));
  to.chunk_of(pick(kRuns, v, kChunkRuns));
  to.split(v[kSplits] + 1, v[kCombine]);
  to.copies(pick(kPlacesOf, v, kPlaces));
  to.change(&LinearInt8Wgmma::prepack_x, v[kMaking] % 2);
  return to.plan;
}

LinearWgmmaLargeM rows_plan(const std::vector<int>& v, const Linear& op, const Problem& problem,
                            const GpuSpec& gpu) {
  LinearWgmmaLargeM first{.threads = pick(kThreadsOf, v, kThreads) < 96 ? 128 : 256};
  first.rows_per_block = 16 << v[kRowsPerBlock];
  first.byte_sums = 1;
  first.codebook = all_shared(op.weights.entries());
  first.code_words = 1;
  Attempts<LinearWgmmaLargeM> to(first, op, problem, gpu);
  to.words(pick(kWordsOf, v, kCodeWords));
  to.change(&LinearWgmmaLargeM::outputs_per_warp, pick(kOutputsOf, v, kOutputs));
  to.chunk_of(pick(kRuns, v, kChunkRuns));
  to.split(v[kSplits] + 1, v[kCombine]);
  to.copies(pick(kPlacesOf, v, kPlaces));
  to.change(&LinearWgmmaLargeM::groups_along_columns, 1 + v[kMaking] / 2 % 2);
  to.change(&LinearWgmmaLargeM::prepack_x, v[kMaking] % 2);
  return to.plan;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.rows = pick(kRowsOf, v, kRows),
              .out_features = pick(kOuts, v, kOutFeatures),
              .in_features = pick(kIns, v, kInFeatures)};
  op.weights.vector_size = pick(kVectors, v, kVector);
  op.weights.index_bits = pick(kBitsOf, v, kBits);
  if (v[kBits] >= kSigns) {
    op.weights.decoder = Decoder::signs;
    op.weights.index_bits += op.weights.vector_size;
  }
  op.weights.num_codebooks = v[kResiduals] + 1;
  op.weights.output_scales = v[kOutputScales] == 1;
  op.weights.layout = pick(kLayouts, v, kLayout);
  with_integers(op.weights, true);
  op.weights.common_scale = true;
  std::tie(op.weights.group_inputs, op.weights.group_scale_bits) = pick(kGroupsOf, v, kGroups);
  if (op.weights.group_inputs > 0) {
    op.shape.rows = 1 + v[kRows] % 2;
    op.shape.in_features = ceil_div(op.shape.in_features, 256) * 256;
  }
  // With the wgmma dataflows one codebook serves all columns.
  const Dataflow dataflow = pick(kDataflows, v, kDataflow);
  const int unit = dataflow == kBytes ? 1024 : 4096;
  if (v[kScope] == 1) {
    op.weights.scope = Scope::channel_group;
    op.weights.group_channels = unit;
  } else if (v[kScope] == 2) {
    op.weights.scope = Scope::tile;
    op.weights.tile_rows = 1536;
    op.weights.tile_columns = unit;
  }

  SweepCase result;
  result.problem = as_problem(op);
  validate(result.problem, "sweep");
  result.plan = dataflow == kBytegroups  ? Plan(groups_plan(v, op, result.problem, gpu))
                : dataflow == kRowgroups ? Plan(rows_plan(v, op, result.problem, gpu))
                                         : Plan(bytes_plan(v, op, result.problem, gpu));
  // A case's own plans are those that differ from the first one that check() takes.
  result.override_dropped = !check(result.plan, result.problem, gpu).ok;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases bytes_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (int bits = 0; bits < static_cast<int>(kBitsOf.size()); ++bits) {
    // 10 bits in 16 copies take 128 KiB per stage.
    if (kBitsOf[static_cast<std::size_t>(bits)] != 10) continue;
    for (const int places : {1, 2})
      impossible.emplace(AxisValue{kBits, bits}, AxisValue{kPlaces, places});
  }
  for (const int stages : {1, 2, 3}) {
    impossible.emplace(AxisValue{kBits, kSigns}, AxisValue{kResiduals, stages});
    impossible.emplace(AxisValue{kBits, kSigns + 1}, AxisValue{kResiduals, stages});
  }
  for (int groups = 0; groups < static_cast<int>(kGroupsOf.size()); ++groups) {
    if (kGroupsOf[static_cast<std::size_t>(groups)].first == 0) continue;
    for (const int stages : {1, 2, 3}) {
      impossible.emplace(AxisValue{kResiduals, stages}, AxisValue{kGroups, groups});
    }
    for (int each = 0; each < static_cast<int>(kDataflows.size()); ++each) {
      if (kDataflows[static_cast<std::size_t>(each)] == kBytes) continue;
      impossible.emplace(AxisValue{kDataflow, each}, AxisValue{kGroups, groups});
    }
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

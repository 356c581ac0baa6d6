// Cases of attention by int8_mma, which has few formats: keys and values of 256 int8 entries.
#include "heuristics/check.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum Axis {
  kDType,
  kHeadDim,
  kGroup,
  kKvHeads,
  kBatch,
  kTokens,
  kLengths,
  kKeyScope,
  kValueScope,
  kTransforms,
  kCodes,
  kLayout,
  kAlignment,
  kBatchInvariant,
  kThreads,
  kSplits,
  kCombine,
  kHeads,
  kRounds,
  kPages,
  kOrder,
  kWindow,
  kSinks,
};
constexpr std::array kHeadDims{64, 128};
constexpr std::array kGroups{1, 3, 4, 5, 8, 11};
constexpr std::array kTokenCounts{1, 31, 32, 33, 150, 403};
constexpr std::array kScopes{Scope::tensor, Scope::head, Scope::channel_group};
constexpr std::array kWordsOfRun{1, 2, 4};  // layouts that leave rows as they are
constexpr std::array kThreadsOf{32, 64, 96};
constexpr std::array kRoundsOf{2, 3, 4};
constexpr std::array kHeadsOf{8, 4, 1};
constexpr std::array kWindows{Window{0}, Window{1}, Window{37}, Window{130}, Window{37, 10}};
constexpr std::array kSinkCounts{0, 3, 40};
// The number of values of each Axis.
const std::vector<int> kSizes{2, 2, 6, 2, 2, 6, 2, 3, 3, 4, 5, 3, 3, 2, 3, 3, 2, 3, 3, 4, 5, 5, 3};

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  AttentionDecode op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.head_dim = pick(kHeadDims, kHeadDim);
  op.shape.kv_heads = v[kKvHeads] + 1;
  op.shape.query_heads = op.shape.kv_heads * pick(kGroups, kGroup);
  op.shape.tokens = pick(kTokenCounts, kTokens);
  op.shape.batch = v[kBatch] == 0 ? 1 : 3;
  op.shape.batch_invariant = v[kBatchInvariant] == 1;
  op.shape.page_tokens = pick(kPageTokens, kPages);
  op.shape.recent_tokens = pick(kWindows, kWindow).slots;
  op.shape.flush_block = pick(kWindows, kWindow).batch;
  op.shape.sinks = pick(kSinkCounts, kSinks);
  const auto format = [&](Axis scope) {
    VqFormat of{.vector_size = 4, .index_bits = 8, .scope = pick(kScopes, scope)};
    if (of.scope == Scope::channel_group) of.group_channels = op.shape.head_dim;
    of.layout.words = pick(kWordsOfRun, kLayout);
    with_integers(of, true);
    return of;
  };
  op.keys = format(kKeyScope);
  op.values = format(kValueScope);
  op.keys.smooth = v[kTransforms] % 2 == 1;
  op.keys.hadamard = v[kTransforms] >= 2;

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  AttentionInt8Mma plan{.threads = pick(kThreadsOf, kThreads)};
  plan.splits = v[kSplits] + 1;
  plan.heads_per_block = std::min(pick(kHeadsOf, kHeads), op.group());
  plan.pipeline_stages = pick(kRoundsOf, kRounds);
  if (v[kCombine] == 1 && plan.splits > 1) plan.combine = Combine::last_block;
  result.plan = plan;
  result.override_dropped = !check(result.plan, result.problem, gpu).ok;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]),
                  static_cast<LengthPattern>(v[kLengths])};
  result.input.page_order = pick(kPageOrders, kOrder);
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases attention_int8_mma_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  exclude_orders(impossible, kPages, kOrder);
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

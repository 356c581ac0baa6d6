// Cases of attention by int8_mma, which has few formats: keys and values of 256 int8 entries each,
// in one format or in parts.
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
  kKeyForm,
  kValueForm,
  kQueries,
  kSchedule,
  kBasis,
  kMask,
  kValueDim,
};
constexpr std::array kHeadDims{64, 128, 80, 96, 112, 160, 192, 256};
constexpr std::array kGroups{1, 3, 4, 5, 8, 11};
constexpr std::array kTokenCounts{1, 31, 32, 33, 150, 403};
constexpr std::array kScopes{Scope::tensor, Scope::head, Scope::channel_group};
constexpr std::array kWordsOfRun{1, 2, 4};  // layouts that leave rows as they are
constexpr std::array kThreadsOf{32, 64, 96};
constexpr std::array kRoundsOf{2, 3, 4};
constexpr std::array kHeadsOf{8, 4, 1};
constexpr std::array kWindows{Window{0},   Window{1},      Window{37},
                              Window{130}, Window{37, 10}, Window{130, 1, 16}};
constexpr std::array kSinkCounts{0, 3, 40};
// The number of values of each Axis.
const std::vector<int> kSizes{2, 8, 6, 2, 2, 6, 2, 3, 3, 4, 5, 3, 3, 2,      3,
                              3, 2, 3, 3, 4, 5, 6, 3, 9, 9, 7, 2, 3, kMasks, kValueDims.size()};
// Most query tokens, whether they bring their keys and values, whether they form a tree, and
// whether they share a prefix.
struct Queries {
  int most;
  bool fresh;
  bool tree = false;
  bool prefix = false;
};
constexpr std::array kQueryCases{Queries{1, false},
                                 Queries{2, false},
                                 Queries{2, true},
                                 Queries{5, false},
                                 Queries{5, true},
                                 Queries{11, true, true},
                                 Queries{9, false, false, true}};
constexpr int kOfTree = 5;
constexpr int kOfPrefix = 6;

const std::vector<std::vector<ChannelRun>> kForms128{{{128, 4}},
                                                     {{128, 2}},
                                                     {{32, 2}, {32, 4}, {64, 8}},
                                                     {{128, 8}},
                                                     {{64, 8}, {32, 4}, {32, 2}},
                                                     {{64, 8}, {64, 16}},
                                                     {{64, 4}, {64, 16}},
                                                     {{16, 2}, {48, 4}, {64, 16}},
                                                     {{64, 2}, {64, 4}}};
const std::vector<std::vector<ChannelRun>> kForms64{
    {{64, 4}},          {{64, 2}},          {{32, 4}, {32, 4}},
    {{64, 8}},          {{32, 4}, {32, 8}}, {{16, 2}, {16, 4}, {32, 8}},
    {{32, 2}, {32, 8}}, {{32, 2}, {32, 4}}, {{64, 16}}};

// The forms of head_dim channels: of other sizes in one format more often, of entries of each size.
std::vector<ChannelRun> form_of(int head_dim, int number) {
  const auto at = static_cast<std::size_t>(number);
  if (head_dim == 128) return kForms128[at];
  if (head_dim == 64) return kForms64[at];
  constexpr std::array kSizesOf{4, 2, 8, 4, 16, 4, 8, 4, 2};
  if (head_dim == 256 && number == 3) return {{128, 4}, {128, 8}};
  if (head_dim == 192 && number == 6) return {{64, 4}, {128, 2}};
  return {{head_dim, kSizesOf[at]}};
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  AttentionDecode op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.head_dim = pick(kHeadDims, kHeadDim);
  set_value_dim(op.shape, v[kValueDim]);
  op.shape.kv_heads = v[kKvHeads] + 1;
  op.shape.query_heads = op.shape.kv_heads * pick(kGroups, kGroup);
  op.shape.tokens = pick(kTokenCounts, kTokens);
  op.shape.batch = v[kBatch] == 0 ? 1 : 3;
  op.shape.batch_invariant = v[kBatchInvariant] == 1;
  op.shape.page_tokens = pick(kPageTokens, kPages);
  op.shape.recent_tokens = pick(kWindows, kWindow).slots;
  op.shape.flush_block = pick(kWindows, kWindow).batch;
  op.shape.raw_page_tokens = pick(kWindows, kWindow).page;
  op.shape.sinks = pick(kSinkCounts, kSinks);
  const Queries queries = pick(kQueryCases, kQueries);
  op.shape.query_tokens = queries.most;
  op.shape.tree_mask = queries.tree;
  op.shape.shared_prefix = queries.prefix;
  const auto format = [&](int head_dim, Axis form, Axis scope) {
    return in_runs(form_of(head_dim, v[form]), pick(kScopes, scope), pick(kWordsOfRun, kLayout));
  };
  op.keys = format(op.shape.head_dim, kKeyForm, kKeyScope);
  op.values = format(op.shape.value_dim(), kValueForm, kValueScope);
  const bool in_basis = v[kBasis] > 0;  // fused or not
  if (!op.keys.in_parts() && !in_basis) {
    op.keys.smooth = v[kTransforms] % 2 == 1;
    op.keys.hadamard = v[kTransforms] >= 2;
  } else {
    op.keys.center = op.values.center = v[kTransforms] % 2 == 1;
    op.keys.klt = v[kTransforms] >= 2;
  }
  set_mask(op, v[kMask]);
  if (queries.prefix) op.shape.sink_logits = false;

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  AttentionInt8Mma plan{.threads = pick(kThreadsOf, kThreads)};
  plan.splits = v[kSplits] + 1;
  const int most = longest_row(op.shape) > 160 ? 4 : 8;
  const int heads = std::min(most, pick(kHeadsOf, kHeads));
  plan.heads_per_block =
      std::min(heads, op.group()) * std::clamp(heads / op.group(), 1, op.shape.query_tokens);
  plan.pipeline_stages = pick(kRoundsOf, kRounds);
  if (v[kSchedule] == 1 && plan.splits > 1 && op.shape.batch > 1 && !op.shape.batch_invariant) {
    plan.schedule = Schedule::balanced;
  }
  if (v[kBasis] == 2 && v[kTransforms] > 0 && op.shape.head_dim <= 192 && v[kValueDim] == 0 &&
      op.shape.query_tokens == 1 && plan.schedule == Schedule::per_sequence) {
    plan.fused_basis = 1;
  }
  if (v[kCombine] == 1 && plan.splits > 1) plan.combine = Combine::last_block;
  result.plan = plan;
  result.override_dropped = !check(result.plan, result.problem, gpu).ok;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]),
                  static_cast<LengthPattern>(v[kLengths])};
  result.input.fresh = queries.fresh;
  result.input.uneven = seed % 2 == 0;
  result.input.page_order = pick(kPageOrders, kOrder);
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

VqFormat in_runs(const std::vector<ChannelRun>& runs, Scope scope, int words_of_run) {
  std::vector<VqFormat> parts;
  int channel = 0;
  for (const ChannelRun& run : runs) {
    VqFormat part{.vector_size = run.size, .index_bits = 8, .scope = scope};
    if (scope == Scope::channel_group) part.group_channels = run.channels;
    with_integers(part, true);
    for (int i = 0; i < run.channels; ++i) part.channels.push_back(channel++);
    parts.push_back(part);
  }
  if (parts.size() > 1) return in_parts(std::move(parts));
  parts.front().channels.clear();
  parts.front().layout.words = words_of_run;
  return parts.front();
}

SweepCases attention_int8_mma_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  exclude_orders(impossible, kPages, kOrder);
  exclude_trees(impossible, {kQueries, kOfTree}, kMask, kBatchInvariant);
  exclude_prefixes(impossible, {kQueries, kOfPrefix},
                   {kMask, kBatchInvariant, kWindow, kSizes[kWindow], kSinks, kSizes[kSinks]});
  exclude_raw_pages(impossible, kWindows, kWindow, kSinks, kSizes[kSinks]);
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

}  // namespace vqgen::test

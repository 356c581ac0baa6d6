// Scalar codes of caches in every op and dataflow that reads or writes them, combined with each
// other and with codes of tables.
#include <fmt/format.h>

#include "heuristics/check.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kOp,
  kKeys,
  kValues,
  kDType,
  kHeadDim,
  kKvHeads,
  kGroup,
  kBatch,
  kTokens,
  kNewTokens,
  kWindow,
  kSinks,
  kQueries,
  kLengths,
  kAlignment,
  kKeyPlaces,
  kValuePlaces,
  kVaried,
  kKeyLayout,
  kValueLayout,
  kPages,
  kOrder,
  kDataflow,
  kBatchInvariant,
  kMask,
  kValueDim,
};
const std::vector<int> kSizes{3, 13, 13, 2, 8, 2, 3, 2, 4, 2, 4, 2,      3,
                              2, 2,  8,  8, 3, 6, 6, 4, 5, 5, 2, kMasks, kValueDims.size()};
constexpr std::array kHeadDims{64, 80, 96, 112, 128, 160, 192, 256};
constexpr std::array kGroups{1, 4, 5};
constexpr std::array kBatches{1, 3};
constexpr std::array kTokenCounts{1, 9, 65, 130};
constexpr std::array kNewCounts{1, 7};
constexpr std::array kWindows{Window{0}, Window{1}, Window{12}, Window{12, 5}};
constexpr std::array kSinkCounts{0, 3};
constexpr std::array kQueryTokens{1, 3, 5};
constexpr int kRing = 4;  // value of kDataflow: mma with code_stages

// Formats by number: scales by channel (8 bits; 4 bits; 8 bits per half head) and by head (floats);
// a table; by token (8 bits; floats); KIVI's values and others with token scales and groups; scales
// shared by 32 or 16 tokens, KIVI's keys among them.
VqFormat format_of(int number, int head_dim) {
  VqFormat format{.vector_size = number == 1 || number == 4 ? 4 : 2, .index_bits = 16};
  format.decoder = number < 3 ? Decoder::scalar : Decoder::e4m3;
  format.scope = number < 3 ? Scope::channel_group : Scope::head;
  if (number == 2) format.group_channels = head_dim / 2;
  if (number >= 5) {
    format.decoder = number == 5 ? Decoder::scalar : Decoder::e4m3;
    format.scope = Scope::tensor;
    format.token_scales = true;
  }
  if (number >= 7) {
    format.decoder = number == 9 ? Decoder::scalar : Decoder::affine;
    format.vector_size = number == 7 ? 4 : 2;
    format.group_channels = number == 7 ? 32 : number == 9 ? 16 : 0;
  }
  if (number >= 10) {
    format.decoder = number == 11 ? Decoder::scalar : Decoder::affine;
    format.vector_size = number == 10 ? 4 : 2;
    format.token_scales = false;
    format.group_channels = 0;
    format.group_tokens = number == 10 ? 32 : 16;
  }
  if (number == 4) {
    format.decoder = Decoder::table;
    format.index_bits = 5;
  }
  return format;
}

template <class Op>
void set_plan(SweepCase& result, const std::vector<int>& v, const Op& op, const GpuSpec& gpu) {
  const Plan like = std::is_same_v<Op, AttentionDecode> ? Plan(AttentionSimt{})
                    : std::is_same_v<Op, KvAppend>      ? Plan(AppendSimt{})
                                                        : Plan(DequantizeSimt{});
  result.plan = rules_plan(like, op, gpu);
  if constexpr (std::is_same_v<Op, AttentionDecode>) {
    const std::array<Plan, 5> dataflows{AttentionSimt{}, AttentionLut{}, AttentionMma{},
                                        AttentionMma{}, AttentionMma{}};
    const Plan other = rules_plan(dataflows[static_cast<std::size_t>(v[kDataflow])], op, gpu);
    result.dataflow_dropped = !check(other, op, gpu).ok;
    if (!result.dataflow_dropped) result.plan = other;
  }
  const auto attempt = [&](auto&& change) {
    Plan changed = result.plan;
    change_own(changed, change);
    const bool fits = check(changed, op, gpu).ok;
    if (fits) result.plan = changed;
    result.override_dropped = result.override_dropped || !fits;
  };
  attempt([&](auto& own) { own.threads = v[kVaried] == 0 ? 64 : 128; });
  if (v[kVaried] > 0) {
    attempt(
        [&](auto& own) requires requires { own.splits; } { own.splits = 1 + v[kVaried]; });
  }
  attempt(
      [&](auto& own) requires requires { own.step_tokens; } {
        own.step_tokens = 8 << v[kVaried];
        if (v[kDataflow] == 3) own.code_words = 1;
        if (v[kDataflow] != kRing) own.code_stages = 0;
      });
  if (v[kDataflow] == kRing) {
    attempt(
        [&](auto& own) requires requires { own.code_stages; } {
          own.code_stages = 2 + v[kVaried];
          const int together = op.keys.group_tokens;
          if (together > 0) own.step_tokens = v[kVaried] == 0 ? together / 2 : together;
        });
  }
  if (v[kVaried] > 0 && v[kLengths] == 1) {
    attempt(
        [&](auto& own) requires requires { own.combine = Combine{}; } {
          own.combine = Combine::last_block;
        });
  }
  attempt(
      [&](auto& own) requires requires { own.key_codebook = Placement{}; } {
        fix_placement(own.key_codebook, op.keys, v[kKeyPlaces]);
      });
  attempt(
      [&](auto& own) requires requires { own.value_codebook = Placement{}; } {
        fix_placement(own.value_codebook, op.values, v[kValuePlaces]);
      });
}

template <class Op>
Op problem_of(const std::vector<int>& v) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  Op op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.batch = pick(kBatches, kBatch);
  op.shape.kv_heads = v[kKvHeads] + 1;
  op.shape.head_dim = pick(kHeadDims, kHeadDim);
  set_value_dim(op.shape, v[kValueDim]);
  op.shape.tokens = pick(kTokenCounts, kTokens);
  op.shape.recent_tokens = pick(kWindows, kWindow).slots;
  op.shape.flush_block = pick(kWindows, kWindow).batch;
  op.shape.sinks = pick(kSinkCounts, kSinks);
  op.shape.page_tokens = pick(kPageTokens, kPages);
  if constexpr (std::is_same_v<Op, AttentionDecode>) {
    op.shape.query_heads = op.shape.kv_heads * pick(kGroups, kGroup);
    op.shape.query_tokens = pick(kQueryTokens, kQueries);
    op.shape.batch_invariant = v[kBatchInvariant] == 1;
    set_mask(op, v[kMask]);
  }
  if constexpr (std::is_same_v<Op, KvAppend>) op.shape.new_tokens = pick(kNewCounts, kNewTokens);
  op.keys = format_of(v[kKeys], op.shape.head_dim);
  op.values = format_of(v[kValues], op.shape.value_dim());
  if (const int together = std::max(op.keys.group_tokens, op.values.group_tokens); together > 0) {
    op.shape.recent_tokens += together;
    op.shape.flush_block = 1;  // the tokens of a group wait for each other
    if constexpr (requires { op.shape.query_tokens; })
      op.shape.recent_tokens += op.shape.query_tokens - 1;
    if (op.shape.page_tokens > 0) op.shape.page_tokens = std::max(op.shape.page_tokens, together);
  }
  op.keys.layout = pick(kLayouts, kKeyLayout);
  op.values.layout = pick(kLayouts, kValueLayout);
  return op;
}

template <class Op>
SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  const auto op = problem_of<Op>(v);
  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  set_plan(result, v, op, gpu);
  result.input = {.seed = seed,
                  .lengths = v[kLengths] == 0 ? LengthPattern::full : LengthPattern::ragged,
                  .page_order = kPageOrders[static_cast<std::size_t>(v[kOrder])],
                  .uneven = seed % 2 == 0};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases scalar_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible{{{kKeys, 4}, {kValues, 4}}};  // other sweeps have these
  for (int format = 0; format < 13; ++format) {
    if (format != 4) impossible.emplace(AxisValue{kKeys, format}, AxisValue{kDataflow, 1});
    const bool keys = format < 7 || format == 10 || format == 12;
    const bool values = format < 9;
    for (const int fragments : {2, 3, kRing}) {
      if (!keys) impossible.emplace(AxisValue{kKeys, format}, AxisValue{kDataflow, fragments});
      if (!values) impossible.emplace(AxisValue{kValues, format}, AxisValue{kDataflow, fragments});
    }
  }
  for (const int head_dim : {1, 3}) {  // no multiples of 32, which formats 7 and 10 have scales of
    for (const Axis tensor : {kKeys, kValues}) {
      for (const int format : {7, 10}) {
        impossible.emplace(AxisValue{tensor, format}, AxisValue{kHeadDim, head_dim});
      }
    }
  }
  exclude_orders(impossible, {kKeyLayout, kValueLayout, kPages, kOrder});
  for (int layout = 0; layout < static_cast<int>(kLayouts.size()); ++layout) {
    if (kLayouts[static_cast<std::size_t>(layout)].rows == 1) continue;
    for (const Axis tensor : {kKeyLayout, kValueLayout}) {
      impossible.emplace(AxisValue{tensor, layout}, AxisValue{kDataflow, kRing});
    }
  }
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return values[kOp] == 0   ? make_case<AttentionDecode>(values, gpu, own)
           : values[kOp] == 1 ? make_case<KvAppend>(values, gpu, own)
                              : make_case<KvDequantize>(values, gpu, own);
  });
}

}  // namespace vqgen::test

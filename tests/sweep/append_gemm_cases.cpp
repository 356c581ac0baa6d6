#include <fmt/format.h>

#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kWidth,
  kKeyBits,
  kValueBits,
  kKeyResiduals,
  kValueResiduals,
  kKeyScope,
  kValueScope,
  kDType,
  kKvHeads,
  kTokens,
  kNewTokens,
  kWindow,
  kSinks,
  kSmooth,
  kKeyScales,
  kValueScales,
  kPlaces,
  kAlignment,
  kThreads,
  kSplits,
  kTokensPerBlock,
  kTileBytes,
  kWarpgroups,
  kKeyLayout,
  kValueLayout,
  kPages,
  kOrder,
};
// Channels of a head and of the sub-vectors of keys and values: every width, with one, two and more
// keys per head; and channels of a head of values that have another size.
struct Width {
  int head_dim, key, value, value_head_dim = 0;
};
constexpr std::array kWidths{Width{96, 48, 32}, Width{80, 16, 80}, Width{128, 64, 128},
                             Width{96, 96, 16}, Width{64, 32, 64}, Width{192, 64, 32, 128}};
constexpr std::array kKeyBitsOf{5, 7, 8};
constexpr std::array kValueBitsOf{6, 9};
constexpr std::array kKeyResidualsOf{1, 3, 6};
constexpr std::array kValueResidualsOf{1, 2};
constexpr std::array kTokenCounts{1, 9, 70};
constexpr std::array kNewCounts{1, 7, 50};
constexpr std::array kWindows{Window{0},    Window{1},     Window{4},
                              Window{4, 3}, Window{60, 7}, Window{4, 1, 16}};
constexpr std::array kSinkCounts{0, 1, 3};
constexpr std::array kThreadCounts{32, 96, 128};
constexpr std::array kSplitCounts{1, 2, 128};
constexpr std::array kBlockTokens{1, 5, 50};
constexpr std::array kTiles{1024, 16384};

// The number of values of each Axis.
const std::vector<int> kSizes{6, 3, 2, 3, 2, 4, 4, 2, 2, 3, 3, 6, 3, 2,
                              2, 2, 2, 2, 3, 3, 3, 2, 2, 6, 6, 4, 5};

SweepCase make_case(const std::vector<int>& v, std::uint64_t seed) {
  const auto pick = [&](const auto& values, Axis axis) {
    return values[static_cast<std::size_t>(v[axis])];
  };
  const Width width = pick(kWidths, kWidth);
  KvAppend op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape = {.batch = 2,
              .kv_heads = v[kKvHeads] + 1,
              .head_dim = width.head_dim,
              .tokens = pick(kTokenCounts, kTokens),
              .new_tokens = pick(kNewCounts, kNewTokens),
              .recent_tokens = pick(kWindows, kWindow).slots,
              .sinks = pick(kSinkCounts, kSinks),
              .page_tokens = pick(kPageTokens, kPages),
              .raw_page_tokens = pick(kWindows, kWindow).page,
              .flush_block = pick(kWindows, kWindow).batch,
              .value_head_dim = width.value_head_dim};
  const auto format = [&](int head_dim, int size, int bits, int num_codebooks, int scope) {
    // Half a head is a channel group if sub-vectors fit it.
    const bool halves = head_dim / 2 % size == 0;
    return cache_format(bits, size, num_codebooks, scope == 3 && !halves ? 1 : scope, head_dim,
                        halves ? 32 : 1 << 16);
  };
  op.keys = format(width.head_dim, width.key, pick(kKeyBitsOf, kKeyBits),
                   pick(kKeyResidualsOf, kKeyResiduals), v[kKeyScope]);
  op.values = format(op.shape.value_dim(), width.value, pick(kValueBitsOf, kValueBits),
                     pick(kValueResidualsOf, kValueResiduals), v[kValueScope]);
  op.keys.smooth = v[kSmooth] == 1;
  op.keys.stage_scales = v[kKeyScales] == 1;
  op.values.stage_scales = v[kValueScales] == 1;
  op.keys.layout = pick(kLayouts, kKeyLayout);
  op.values.layout = pick(kLayouts, kValueLayout);

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  result.plan = AppendGemm{
      .threads = pick(kThreadCounts, kThreads),
      .splits = vq::takes_slots(facts(op)) ? 1 : pick(kSplitCounts, kSplits),
      .tokens_per_block = std::min(pick(kBlockTokens, kTokensPerBlock), op.shape.new_tokens),
      .tile_bytes = pick(kTiles, kTileBytes),
      .warpgroups = v[kWarpgroups]};
  result.input = {.seed = seed,
                  .lengths = v[kPlaces] == 0 ? LengthPattern::full : LengthPattern::ragged,
                  .page_order = pick(kPageOrders, kOrder)};
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases append_gemm_pairwise(std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const int threads : {0, 1})
    impossible.emplace(AxisValue{kThreads, threads}, AxisValue{kWarpgroups, 1});
  exclude_orders(impossible, {kKeyLayout, kValueLayout, kPages, kOrder});
  exclude_raw_pages(impossible, kWindows, kWindow, kSinks, kSizes[kSinks]);
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, own);
  });
}

}  // namespace vqgen::test

#include <fmt/format.h>

#include "tests/sweep/cases.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// The axes, in the order of kSizes.
enum Axis {
  kKeyBits,
  kValueBits,
  kKeyVector,
  kValueVector,
  kKeyResiduals,
  kValueResiduals,
  kKeyScope,
  kValueScope,
  kDType,
  kHeadDim,
  kGroup,
  kTokens,
  kWindow,
  kSinks,
  kTransforms,
  kStageScales,
  kAlignment,
  kCodes,
  kSplits,
  kKeyLevels,
  kValueLevels,
  kBatch,
  kPlan,
  kKvHeads,
  kDataflow,
  kShares,
  kCombine,
  kKeyLayout,
  kValueLayout,
  kIntegers,
  kPages,
  kQueries,
  kOrder,
  kBatchInvariant,
  kBasis,
  kMask,
  kValueDim,
};
constexpr int kBits = 15;       // index_bits 2..16 of a table, and then
constexpr int kKeyE8p = kBits;  // lattice codes, which have vectors of 8 alone
constexpr int kValueE8p = 4;    // of the value bits, which are the key bits shifted
const std::vector<int> kSizes{kBits + 1,
                              5,
                              3,
                              3,
                              4,
                              4,
                              4,
                              4,
                              2,
                              8,
                              4,
                              6,
                              7,
                              2,
                              4,
                              4,
                              4,
                              5,
                              3,
                              kPlacements,
                              kPlacements,
                              2,
                              7,
                              2,
                              6,
                              3,
                              2,
                              kLayouts.size(),
                              kLayouts.size(),
                              4,
                              kPageTokens.size(),
                              6,
                              kPageOrders.size(),
                              2,
                              kBases,
                              kMasks,
                              kValueDims.size()};

constexpr int kTile = 64;
constexpr std::array kVectors{2, 4, 8};
constexpr std::array kHeadDims{64, 80, 96, 112, 128, 160, 192, 256};
constexpr std::array kGroups{1, 4, 5, 8};
constexpr std::array kTokenCounts{1, kTile - 1, kTile, kTile + 1, 211, 150};  // the last is ragged
constexpr int kRagged = 5;
constexpr std::array kWindows{Window{0},      Window{1},       Window{37},       Window{100},
                              Window{37, 10}, Window{100, 64}, Window{37, 1, 24}};
constexpr std::array kSinkCounts{0, 3};
constexpr std::array kSplitCounts{1, 2, 3};
constexpr int kHadamard = 2;
// Query tokens: one, several in the cache, several fresh, a varying number, one in a tree, and one
// over a shared prefix.
struct Queries {
  int most;
  bool fresh;
  LengthPattern counts;
  bool tree = false;
  bool prefix = false;
};
constexpr std::array kQueryCases{Queries{1, false, LengthPattern::full},
                                 Queries{3, false, LengthPattern::full},
                                 Queries{5, true, LengthPattern::full},
                                 Queries{16, false, LengthPattern::ragged},
                                 Queries{24, true, LengthPattern::ragged, true},
                                 Queries{20, false, LengthPattern::ragged, false, true}};
constexpr int kOfTree = 4;
constexpr int kOfPrefix = 5;
// Half are mma, which choice takes most often.
const std::array<Plan, 6> kDataflows{AttentionSimt{}, AttentionLut{}, AttentionChannels{},
                                     AttentionMma{},  AttentionMma{}, AttentionMma{}};
constexpr int kTables = 1;
constexpr int kChannels = 2;
// Splits of key and value channels; 0 leaves the heuristics' choice.
constexpr std::array kSharesOf{std::pair{0, 0}, std::pair{2, 4}, std::pair{8, 1}};
constexpr int kMostTableBits = 10;  // larger tables hardly fit a block

// Narrow groups have a codebook per sub-vector; with larger codebooks a test would need too much
// memory.
constexpr int kMostNarrowEntries = 2048;

void vary(AttentionMma& plan, int variant) {
  switch (variant) {
    case 1:
      plan.code_words = 1;
      break;
    case 2:
      plan.step_tokens = 8;
      break;
    case 3:
      plan.step_tokens = 32;
      plan.threads = 64;
      break;
    case 4:
      plan.heads_per_block = (plan.heads_per_block + 1) / 2;
      break;
    case 5:
      plan.threads = 32;
      break;
    case 6:
      plan.code_stages = 3;
      break;
    default:
      break;
  }
}

// Varies simt, lut and channels.
template <class P>
requires requires(P plan) { plan.tile_tokens; }
void vary(P& plan, int variant) {
  switch (variant) {
    case 1:
      plan.tiles_in_flight = 1;
      break;
    case 2:
    case 3:
      if constexpr (std::is_same_v<P, AttentionLut>) {
        if (variant == 2) plan.threads = 64;
        if (variant == 3) plan.heads_per_block = 1;
      } else {
        plan.lanes_per_token = variant == 2 ? 1 : 32;
      }
      break;
    case 4:
      plan.heads_per_block = (plan.heads_per_block + 1) / 2;
      break;
    case 5:
      plan.threads = 256;
      plan.tile_tokens = 24;
      break;
    default:
      break;
  }
}

// Forces placements of keys and values independently, so that all pairs of levels occur. lut does
// not place keys: its level sets the length of tiles.
constexpr std::array<int, kPlacements> kTilesOfTables{0, 5, 8, 16, 32, 48, 96, 128};
void fix_levels(Plan& plan, const AttentionDecode& op, int keys, int values) {
  Placement* const of_keys = placement_of(plan, Operand::keys);
  if (of_keys != nullptr) fix_placement(*of_keys, op.keys, keys);
  fix_placement(*placement_of(plan, Operand::values), op.values, values);
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
  op.shape.recent_tokens = pick(kWindows, kWindow).slots;
  op.shape.flush_block = pick(kWindows, kWindow).batch;
  op.shape.raw_page_tokens = pick(kWindows, kWindow).page;
  op.shape.sinks = pick(kSinkCounts, kSinks);
  op.shape.batch = v[kBatch] == 0 ? 1 : 3;
  op.shape.page_tokens = pick(kPageTokens, kPages);
  const Queries queries = pick(kQueryCases, kQueries);
  op.shape.query_tokens = queries.most;
  op.shape.tree_mask = queries.tree;
  op.shape.shared_prefix = queries.prefix;
  op.shape.batch_invariant = v[kBatchInvariant] == 1;
  constexpr std::array kShifts{0, 3, 7, 11};  // value bits follow key bits: all 15 occur
  const int value_bits =
      v[kValueBits] == kValueE8p ? 0 : 2 + (v[kKeyBits] + pick(kShifts, kValueBits)) % kBits;
  op.keys = cache_format(v[kKeyBits] == kKeyE8p ? 0 : v[kKeyBits] + 2, pick(kVectors, kKeyVector),
                         v[kKeyResiduals] + 1, v[kKeyScope], op.shape.head_dim, kMostNarrowEntries);
  op.values = cache_format(value_bits, pick(kVectors, kValueVector), v[kValueResiduals] + 1,
                           v[kValueScope], op.shape.value_dim(), kMostNarrowEntries);
  op.keys.layout = pick(kLayouts, kKeyLayout);
  op.values.layout = pick(kLayouts, kValueLayout);
  op.keys.smooth = v[kTransforms] % 2 == 1;
  op.keys.hadamard = v[kTransforms] >= kHadamard;
  op.keys.stage_scales = v[kStageScales] % 2 == 1;
  op.values.stage_scales = v[kStageScales] >= 2;
  with_integers(op.keys, v[kIntegers] % 2 == 1);
  with_integers(op.values, v[kIntegers] >= 2);
  set_basis(op, v[kBasis]);
  set_mask(op, v[kMask]);
  if (queries.prefix) op.shape.sink_logits = false;

  SweepCase result;
  result.problem = op;
  validate(result.problem, "sweep");
  Plan& plan = result.plan;
  plan = rules_plan(pick(kDataflows, kDataflow), op, gpu);
  result.dataflow_dropped = !check(plan, op, gpu).ok;
  if (result.dataflow_dropped) plan = rules_plan(AttentionSimt{}, op, gpu);
  change_own(
      plan, [&](auto& own) requires requires { own.splits; } {
        own.threads = std::min(own.threads, 128);  // a fiber each: more only take time
        own.splits = pick(kSplitCounts, kSplits);
      });
  // Applies each change that check() permits, alone and on top of the previous ones.
  const auto attempt = [&](const Plan& changed) {
    const bool fits = check(changed, op, gpu).ok;
    if (fits) plan = changed;
    result.override_dropped = result.override_dropped || !fits;
  };
  // Changes the plan if it has the field.
  const auto change = [&](auto&& apply) {
    Plan changed = plan;
    if (change_own(changed, apply)) attempt(changed);
  };
  const auto shares = pick(kSharesOf, kShares);
  if (shares.first > 0) {
    change([&](AttentionChannels& own) { own.key_channel_splits = shares.first; });
    change([&](AttentionChannels& own) { own.value_channel_splits = shares.second; });
  }
  if (op.dtype == DType::bf16 && shares.first == 2) {
    change([](AttentionLut& own) { own.table_bits = 16; });
  }
  if (v[kKeyLevels] > 0) {
    change([&](AttentionLut& own) { own.tile_tokens = pick(kTilesOfTables, kKeyLevels); });
  }
  Plan placed = plan;
  fix_levels(placed, op, v[kKeyLevels], v[kValueLevels]);
  attempt(placed);
  change(
      [&](auto& own) requires requires { vary(own, 0); } { vary(own, v[kPlan]); });
  if (v[kCombine] == 1) {
    change(
        [](auto& own) requires requires { own.combine = Combine{}; } {
          own.combine = Combine::last_block;
        });
  }
  result.input = {seed, static_cast<CodePattern>(v[kCodes]),
                  v[kTokens] == kRagged ? LengthPattern::ragged : LengthPattern::full};
  result.input.counts = queries.counts;
  result.input.page_order = pick(kPageOrders, kOrder);
  result.input.uneven = seed % 2 == 0;
  result.input.fresh = queries.counts == LengthPattern::ragged ? v[kSplits] == 1 : queries.fresh;
  result.aligned_results = v[kAlignment] == 0;
  result.name = case_name(v);
  return result;
}

}  // namespace

SweepCases attention_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const int vector : {0, 1}) {
    impossible.emplace(AxisValue{kKeyBits, kKeyE8p}, AxisValue{kKeyVector, vector});
    impossible.emplace(AxisValue{kValueBits, kValueE8p}, AxisValue{kValueVector, vector});
  }
  for (const int of_keys : {1, 3}) {
    impossible.emplace(AxisValue{kKeyBits, kKeyE8p}, AxisValue{kIntegers, of_keys});
    impossible.emplace(AxisValue{kKeyVector, 0}, AxisValue{kIntegers, of_keys});
  }
  for (const int of_values : {2, 3}) {
    impossible.emplace(AxisValue{kValueBits, kValueE8p}, AxisValue{kIntegers, of_values});
    impossible.emplace(AxisValue{kValueVector, 0}, AxisValue{kIntegers, of_values});
  }
  for (int transforms = 1; transforms < kSizes[kTransforms]; ++transforms) {
    exclude_rotations(impossible, {kTransforms, transforms}, kBasis);
  }
  exclude_orders(impossible, {kKeyLayout, kValueLayout, kPages, kOrder});
  exclude_raw_pages(impossible, kWindows, kWindow, kSinks, kSizes[kSinks]);
  exclude_trees(impossible, {kQueries, kOfTree}, kMask, kBatchInvariant);
  exclude_prefixes(impossible, {kQueries, kOfPrefix},
                   {kMask, kBatchInvariant, kWindow, kSizes[kWindow], kSinks, kSizes[kSinks]});
  for (int bits = kMostTableBits - 1; bits <= kKeyE8p; ++bits) {
    impossible.emplace(AxisValue{kKeyBits, bits}, AxisValue{kDataflow, kTables});
  }
  impossible.emplace(AxisValue{kDataflow, kChannels},
                     AxisValue{kCombine, 1});  // which plans do not state
  return cases_of_pairs(kSizes, impossible, seed, [&](const auto& values, std::uint64_t own) {
    return make_case(values, gpu, own);
  });
}

std::vector<SweepCase> attention_product(const GpuSpec& gpu, std::uint64_t seed) {
  std::vector<SweepCase> cases;
  for (int bits = 0; bits <= kKeyE8p; ++bits) {
    for (int vector = bits == kKeyE8p ? 2 : 0; vector < 3; ++vector) {
      for (int num_codebooks = 0; num_codebooks < 4; ++num_codebooks) {
        const int turn = static_cast<int>(cases.size());
        std::vector<int> v(kSizes.size(), 0);
        v[kKeyBits] = bits;
        v[kValueBits] = bits == kKeyE8p ? kValueE8p : 0;
        v[kKeyVector] = v[kValueVector] = vector;
        v[kKeyResiduals] = v[kValueResiduals] = num_codebooks;
        v[kKeyScope] = turn % 4;
        v[kValueScope] = turn / 4 % 4;
        v[kDType] = turn % 2;
        v[kTokens] = 3;
        if (vector > 0 && bits != kKeyE8p) v[kIntegers] = turn / 3 % 4;
        v[kKeyLayout] = turn / 4 % static_cast<int>(kLayouts.size());
        v[kValueLayout] = turn / 5 % static_cast<int>(kLayouts.size());
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

}  // namespace vqgen::test

#include <algorithm>

#include "heuristics/check.h"
#include "heuristics/choose.h"
#include "heuristics/ops/linear.h"
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
  kDataflow,
  kSplits,
  kShape,
  kFusion,
  kCombine,
  kLayout,
  kIntegers,
};
constexpr int kBitCount = 15;    // index_bits 2..16 of a table, and then
constexpr int kE8p = kBitCount;  // codes of the lattice, which has vectors of 8 alone
constexpr int kFragments = 1;    // of the dataflows lanes, fragments,
constexpr int kTables = 2;       // tables,
constexpr int kWarpgroups = 3;   // warpgroups,
constexpr int kSlices = 4;       // slices
constexpr int kMostTableBits = 9;

constexpr std::array kVectors{2, 4, 8};
constexpr int kGemvs = 4;
constexpr std::array kRowsOf{1, 2, 5, 8, 2, 9, 31, 100};  // of GEMV, and then of GEMM
constexpr std::array kOuts{1, 15, 16, 17, 101, 300};
constexpr std::array kIns{8, 64, 96, 520, 1000, 2048};
const std::vector<int> kSizes{
    kBitCount + 1,   3, 4, 5, 2, kRowsOf.size(), 6, 6, 2, 2, 4, 5, kPlacements, 4, 3, 5, 3, 8, 3, 2,
    kLayouts.size(), 2};

VqFormat weight_format(const std::vector<int>& v) {
  VqFormat format;
  format.index_bits = v[kBits] == kE8p ? 16 : v[kBits] + 2;
  if (v[kBits] == kE8p) format.decoder = Decoder::e8p;
  format.vector_size = kVectors[static_cast<std::size_t>(v[kVector])];
  format.residuals = v[kResiduals] + 1;
  format.output_scales = v[kOutputScales] == 1;
  format.stage_scales = v[kStageScales] == 1;
  with_integers(format, v[kIntegers] == 1);
  format.layout = kLayouts[static_cast<std::size_t>(v[kLayout])];
  // Narrow units would take more memory than a test may.
  const bool large = format.entries() > 1024;
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

// What a plan of fragments may vary beside its splits and placement.
void vary_fragments(LinearPlan& plan, int variant) {
  switch (variant) {
    case 1:
      plan.warps_along_columns = 1;
      break;
    case 2:
      plan.threads = 128;
      plan.warps_along_columns = 4;
      break;
    case 3:
      plan.outputs_per_warp = 32;
      break;
    case 4:
      plan.code_words = 1;
      break;
    case 5:
      plan.rows_per_block = 16;
      break;
    case 6:
      plan.fragment_rows = 4;
      plan.outputs_per_warp = 8;
      break;
    case 7:
      plan.fragment_rows = 4;
      plan.outputs_per_warp = 24;
      plan.rows_per_block = 12;
      plan.warps_along_columns = 2;
      break;
    default:
      break;
  }
}

// The same of warpgroups.
void vary_warpgroups(LinearPlan& plan, int variant) {
  switch (variant) {
    case 1:
      plan.threads = 128;
      plan.idle_warps = 3;
      plan.steps_ahead = 1;
      break;
    case 2:
      plan.threads = 256;
      plan.outputs_per_warp = 32;
      plan.idle_warps = 1;
      plan.steps_ahead = 1;
      break;
    case 3:
      plan.rows_per_block = 8;
      plan.steps_ahead = 1;
      break;
    case 4:
      plan.code_words = 1;
      break;
    case 5:
      plan.rows_per_block = 64;
      plan.code_words = 1;
      break;
    case 6:
      plan.threads = 256;
      plan.outputs_per_warp = 48;
      plan.code_words = 1;
      break;
    case 7:  // many chunks
      plan.threads = 256;
      plan.code_words = 1;
      plan.steps_ahead = 1;
      plan.chunk_columns /= 4;
      break;
    default:
      break;
  }
}

// The same of slices: shorter blocks, steps, chunks, and slices as wide as an entry.
void vary_slices(LinearPlan& plan, const Linear& op, int variant) {
  const int slices = plan.splits / op.weights.residuals;  // of one chunk
  plan.threads = variant % 2 == 0 ? 64 : 128;
  plan.outputs_per_warp = variant % 4 == 3 ? 6 : 12;
  if (variant >= 4) plan.code_words = std::max(1, plan.code_words / 2);
  plan.chunk_columns = slice_chunk(op, plan);
  if (variant >= 6) plan.chunk_columns = std::max(plan.chunk_columns / 2, 1);
  const auto chunks =
      static_cast<int>((op.shape.in_features + plan.chunk_columns - 1) / plan.chunk_columns);
  const int narrow = variant % 3 == 1 ? op.weights.held_bytes() / 2 : slices;
  plan.splits = chunks * op.weights.residuals * narrow;
}

// The plan of the case: each group of overrides that check() refuses is dropped.
LinearPlan make_plan(const std::vector<int>& v, const SweepCase& made, const Linear& op,
                     const GpuSpec& gpu, bool& dropped) {
  auto plan = std::get<LinearPlan>(choose(made.problem, gpu, {.chooser = Chooser::rules}));
  if (v[kDataflow] == kFragments) {
    if (const auto fragments = choose_fragments(made.problem, gpu)) plan = *fragments;
  }
  if (v[kDataflow] == kWarpgroups) {
    if (const auto warpgroups = choose_warpgroups(made.problem, gpu)) plan = *warpgroups;
  }
  const auto attempt = [&](auto change) {
    LinearPlan changed = plan;
    change(changed);
    if (check(changed, made.problem, gpu).ok) {
      plan = changed;
    } else {
      dropped = true;
    }
  };
  if (v[kDataflow] == kTables) {
    attempt([&](LinearPlan& p) {
      p.dataflow = LinearDataflow::tables;
      p.threads = v[kShape] % 2 == 0 ? 128 : 256;
      p.outputs_per_warp =
          std::array{4, 12, 16, 32}.at(static_cast<std::size_t>(v[kOutputsPerWarp]));
      p.chunk_columns = 32 * op.weights.vector_size;
      p.rows_per_block = 4;
      p.splits = static_cast<int>((op.shape.in_features + p.chunk_columns - 1) / p.chunk_columns);
      p.codebook = all_global();
    });
    attempt([&](LinearPlan& p) {  // sub-vectors a lane
      p.chunk_columns <<= v[kChunk];
      p.splits = static_cast<int>((op.shape.in_features + p.chunk_columns - 1) / p.chunk_columns);
    });
  }
  if (v[kDataflow] == kSlices) {
    attempt([&](LinearPlan& p) { p = choose_slices(made.problem, gpu); });
    if (plan.dataflow == LinearDataflow::slices)
      attempt([&](LinearPlan& p) { vary_slices(p, op, v[kShape]); });
  }
  attempt([&](LinearPlan& p) { fix_placement(p.codebook, op.weights, v[kLevel]); });
  if (plan.dataflow == LinearDataflow::fragments) {
    attempt([&](LinearPlan& p) { vary_fragments(p, v[kShape]); });
    attempt([&](LinearPlan& p) { p.fusion = static_cast<LinearFusion>(v[kFusion]); });
  } else if (plan.dataflow == LinearDataflow::warpgroups) {
    attempt([&](LinearPlan& p) { vary_warpgroups(p, v[kShape]); });
  } else if (plan.dataflow == LinearDataflow::lanes) {
    attempt([&](LinearPlan& p) {
      if (v[kOutputsPerWarp] > 0) p.outputs_per_warp = v[kOutputsPerWarp];
      if (v[kChunk] == 1) p.chunk_columns = 64;
      if (v[kChunk] == 2) p.chunk_columns = 160;
    });
  }
  if (v[kSplits] > 0 && plan.dataflow != LinearDataflow::tables &&
      plan.dataflow != LinearDataflow::slices)
    attempt([&](LinearPlan& p) { p.splits = v[kSplits]; });
  if (v[kCombine] == 1) {
    attempt([](LinearPlan& p) {
      p.splits = std::max(p.splits, 2);
      p.combine = Combine::last_block;
    });
  }
  return plan;
}

SweepCase make_case(const std::vector<int>& v, const GpuSpec& gpu, std::uint64_t seed) {
  Linear op;
  op.dtype = static_cast<DType>(v[kDType]);
  op.shape.rows = kRowsOf[static_cast<std::size_t>(v[kRows])];
  op.shape.out_features = kOuts[static_cast<std::size_t>(v[kOutFeatures])];
  op.shape.in_features = kIns[static_cast<std::size_t>(v[kInFeatures])];
  op.weights = weight_format(v);

  SweepCase result;
  result.problem = v[kRows] < kGemvs ? Problem(Gemv{op}) : Problem(Gemm{op});
  validate(result.problem, "sweep");
  const LinearPlan plan = make_plan(v, result, op, gpu, result.override_dropped);
  result.plan = plan;
  result.input = {seed, static_cast<CodePattern>(v[kCodes]), LengthPattern::full};
  auto alignment = static_cast<std::size_t>(v[kAlignment]);
  // The least that args/linear.h and the layout ask for.
  result.misalignment = {alignment, alignment * aligned_words(op.weights.layout)};
  if (streams_codes(plan.dataflow)) {
    result.misalignment.words = alignment * std::max(static_cast<std::size_t>(plan.code_words),
                                                     aligned_words(op.weights.layout));
    if (op.shape.in_features % 8 == 0) result.misalignment.elements = alignment * 8;
  }
  if (plan.dataflow == LinearDataflow::slices) {
    result.misalignment.words = alignment * std::max(static_cast<std::size_t>(plan.code_words),
                                                     aligned_words(op.weights.layout));
  }
  for (const int value : v) result.name += (result.name.empty() ? "" : "-") + std::to_string(value);
  return result;
}

}  // namespace

SweepCases linear_pairwise(const GpuSpec& gpu, std::uint64_t seed) {
  std::set<AxisPair> impossible;
  for (const int vector : {0, 1}) impossible.insert({{kBits, kE8p}, {kVector, vector}});
  impossible.insert({{kBits, kE8p}, {kIntegers, 1}});
  impossible.insert({{kVector, 0}, {kIntegers, 1}});
  for (std::size_t gemm = kGemvs; gemm < kRowsOf.size(); ++gemm) {  // on tensor cores alone
    for (int dataflow = 0; dataflow < kSizes[kDataflow]; ++dataflow) {
      if (dataflow == kFragments || dataflow == kWarpgroups) continue;
      impossible.insert({{kRows, static_cast<int>(gemm)}, {kDataflow, dataflow}});
    }
  }
  // No block has room for larger tables, and none serves units that a chunk lies across.
  for (int bits = kMostTableBits - 1; bits <= kE8p; ++bits) {
    impossible.insert({{kBits, bits}, {kDataflow, kTables}});
  }
  for (const int scope : {2, 3}) impossible.insert({{kScope, scope}, {kDataflow, kTables}});
  // Codes of a sub-vector that are no share of a word.
  for (int bits = 2; bits <= 16; ++bits) {
    if ((bits & (bits - 1)) != 0) impossible.insert({{kBits, bits - 2}, {kDataflow, kSlices}});
  }
  impossible.insert({{kBits, kE8p}, {kDataflow, kSlices}});
  impossible.insert({{kResiduals, 2}, {kDataflow, kSlices}});
  const Pairwise pairwise(kSizes, impossible, seed);
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
  for (int bits = 0; bits <= kE8p; ++bits) {
    for (int vector = bits == kE8p ? 2 : 0; vector < 3; ++vector) {
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
        if (vector > 0 && bits != kE8p) v[kIntegers] = turn / 3 % 2;
        v[kDataflow] = turn % 3;
        v[kFusion] = turn / 3 % 3;
        v[kLayout] = turn / 9 % static_cast<int>(kLayouts.size());
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

std::vector<SweepCase> slices_product(const GpuSpec& gpu, std::uint64_t seed) {
  std::vector<SweepCase> cases;
  for (const int bits : {2, 4, 8, 16}) {
    for (int vector = 0; vector < 3; ++vector) {
      for (const int residuals : {1, 2, 4}) {
        if (residuals * bits > 32) continue;
        const int turn = static_cast<int>(cases.size());
        std::vector<int> v(kSizes.size(), 0);
        v[kBits] = bits - 2;
        v[kVector] = vector;
        v[kResiduals] = residuals - 1;
        v[kScope] = bits == 16 ? turn % 5 : 0;
        v[kDType] = turn % 2;
        v[kRows] = turn % kGemvs;
        v[kOutFeatures] = turn % 6;
        v[kInFeatures] = 3 + turn % 3;
        v[kOutputScales] = turn / 2 % 2;
        v[kStageScales] = turn / 3 % 2;
        v[kAlignment] = turn % 4;
        v[kCodes] = turn % 5;
        if (vector > 0) v[kIntegers] = turn / 4 % 2;
        v[kDataflow] = kSlices;
        v[kShape] = turn % 8;
        v[kCombine] = turn / 2 % 2;
        v[kLayout] = turn / 5 % static_cast<int>(kLayouts.size());
        cases.push_back(make_case(v, gpu, seed + static_cast<std::uint64_t>(turn)));
      }
    }
  }
  return cases;
}

}  // namespace vqgen::test

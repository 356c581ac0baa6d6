// The ladder: a config's plan from tuned tables, borrowed from the nearest row.
//
// A row serves if check() accepts its plan for the problem and GPU, and the plan has the config's
// fixed fields. A row of another size or device class must also not be expected to take more than
// kBorrowMargin times the model's own choice; without a cost for the plan only rung bucket is
// believed.
//
// A plan is borrowed whole, as measured, splits included: scaled splits would be a plan that nobody
// has measured. Up to twice or half the tokens a search would choose alike; beyond, the cost model
// sees a grid that does not fill the GPU.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/access/access_counts.h"
#include "core/gpu/gpu_spec.h"
#include "core/problem/config.h"
#include "heuristics/tuned/tables.h"

namespace vqgen {

// Where a plan comes from. override: the config's own fields, the rest chosen around them. exact to
// family: a row of a tuned table, for
//
//   exact    this problem, device class and codes
//   codes    other codes
//   dtype    the other 16-bit element type, whose kernels move the same bytes as fast
//   bucket   another number of tokens (attention) or rows (GEMM), up to twice or half as many
//   nearest  other sizes: kMostSteps doublings in all; equal are op, element type, formats,
//            head_dim, query heads of a KV head, window, flush_block, sinks,
//            query_tokens, independent, experts and total_rows
//   family   this problem on another device class of the same architecture
//
// model and rules: the chooser.
enum class Rung { override, exact, codes, dtype, bucket, nearest, family, model, rules };
template <>
inline constexpr auto enum_names<Rung> = std::array{
    "override", "exact", "codes", "dtype", "bucket", "nearest", "family", "model", "rules"};

// Limit of rung nearest: the sum over the sizes of |log2(there / here)|, a factor of 4 in all. It
// is a judgement: 4096x4096 may borrow from 14336x4096 or 1024x4096, its like in the same model,
// but not from 28672x8192.
inline constexpr double kMostSteps = 2;

struct Neighbour {
  Rung rung = Rung::exact;
  FoundRow found = {};
  TunedRow row = {};         // read when it is judged
  double steps = 0;          // within its rung; 0 for exact, codes, dtype and bucket's own size
  std::string differs = {};  // "tokens 8192 instead of 4096; codes zipf:1 instead of uniform"
  std::string refused = {};  // why it is not borrowed
};

// The cost model's median error (docs/lab/cost-model.md): differences below it say nothing
// against a plan that has been measured to be the fastest nearby.
inline constexpr double kBorrowMargin = 1.12;

// Rows of other sizes that are tried: of one place in a dense table all are refused for one reason.
inline constexpr std::size_t kMostTried = 8;

struct LadderOptions {
  std::string codes = "uniform";                // MeasurePolicy::codes
  std::span<const AccessCounts> profiles = {};  // from match_access_counts(), for the cost model
  bool all = false;                             // look at all neighbours, not until one serves
};

struct LadderAnswer {
  std::optional<Neighbour> taken;
  std::vector<Neighbour> passed;  // that were not, in their order, each with why
  std::optional<Plan> own;        // the cost model's choice, where it was needed
};

// Error(bad_input) for fields of the plan that the op lacks, and of a damaged table.
LadderAnswer look_up(const TunedTables& tables, const Config& config, const GpuSpec& gpu,
                     const LadderOptions& options = {});

// A plan's origin for people: "h200.jsonl:7: ..., 12.3 us against 15.0 us of ...".
struct PlanSource {
  Rung rung = Rung::model;
  std::string why = {};
};
PlanSource source_of(const Neighbour& taken);

// {"rung": ..., "why": ...}
Json to_json(const PlanSource& source);

}  // namespace vqgen

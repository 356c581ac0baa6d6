// The rows of `vqgen dev ablate`: what each part of VQ-LLM's system gives. A row restricts
// dataflow, fusion and placement of a plan and leaves all else (tiles, warps, loads, splits and
// what merges them) as free as for any other row, so that the restriction is the only difference.
// What a row measures counts for each other row whose restriction it obeys.
//
// The rows of parts force the part that they add, so that a part which costs time shows that too;
// GC*, SC* and best are what the whole space has.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "heuristics/papers/ablation/placement_rule.h"

namespace vqgen {

// placed: dataflows whose entries follow the plan's placement, all but slices.
enum class Dataflows { any, placed, lanes, others, fragments };

struct AblationRow {
  std::string name;  // "GC", "+ registers"
  std::string what;
  Dataflows dataflows = Dataflows::any;
  std::vector<PlacementRule> rules = {};   // that some shape can have
  std::vector<LinearFusion> fusions = {};  // of GEMMs on tensor cores
  std::string note = {};                   // what the row replaces if it does not fit
  std::string refused = "";                // why there is no plan; empty where there is
  bool spread = true;                      // whether it searches before any plan is known
  bool adds = true;  // a part to the rows above, so that it is to be compared with them
};

// One way of a row to complete a shape.
struct Variant {
  PlacementRule rule;
  LinearFusion fusion = LinearFusion::permute;
};

// Takes a plan, and says whether it was wanted: false for one that is already known.
using TakePlan = std::function<bool(const Plan&)>;

class AblationSpace {
 public:
  // `profiles` as place() takes them.
  AblationSpace(const Problem& problem, const GpuSpec& gpu, std::vector<AccessCounts> profiles);

  const std::vector<AblationRow>& rows() const { return rows_; }
  // The plans of space() (heuristics/space.h) without cache and fusion, each once: what all rows
  // share.
  const std::vector<Plan>& shapes() const { return shapes_; }

  // The variant by which the plan obeys the row; nullopt if it does not.
  std::optional<Variant> variant_of(const AblationRow& row, const Plan& plan) const;

  // Offers up to `count` plans of the row, the fastest by the cost model first, with the row's
  // first fusion (costed as permute) and without placements that take long. Without a model for the
  // problem it offers plans with the rules' shape.
  void expected(const AblationRow& row, std::size_t count, const TakePlan& take) const;
  // Spread evenly over its dataflows, fusions and rules, and over the shapes of each.
  void spread(const AblationRow& row, std::size_t count, const TakePlan& take) const;
  // The shape of `plan`, of any row, under each variant of this one.
  void relay(const AblationRow& row, const Plan& plan, std::size_t count,
             const TakePlan& take) const;
  // Offers the shapes most like that of `plan`, which obeys the row, under its variant.
  void nearest(const AblationRow& row, const Plan& plan, std::size_t count,
               const TakePlan& take) const;

 private:
  void add_row(AblationRow row);
  Laid complete(const Plan& shape, const Variant& variant) const;
  Plan shape_of(const Plan& plan) const;
  bool fits(const AblationRow& row, const PlacementRule& rule, std::string& why) const;
  static bool obeys_dataflow(const AblationRow& row, const Plan& plan);
  std::vector<LinearFusion> fusions_of(const AblationRow& row, const Plan& shape) const;

  Problem problem_;
  GpuSpec gpu_;
  std::vector<AccessCounts> profiles_;
  std::vector<Plan> shapes_;
  std::vector<AblationRow> rows_;
};

// "mma, threads 256, splits 8; weights r256x8": the dataflow, fields other than their
// defaults, and the placement of codebooks.
std::string in_short(const Plan& plan, const Problem& problem);

}  // namespace vqgen

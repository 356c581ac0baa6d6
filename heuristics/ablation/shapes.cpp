#include "heuristics/ablation/shapes.h"

#include <set>

#include "core/json/json.h"
#include "core/problem/config.h"
#include "heuristics/ablation/placement_rule.h"
#include "heuristics/space.h"

namespace vqgen {

std::vector<Plan> ablation_shapes(const Problem& problem, const GpuSpec& gpu) {
  std::vector<Plan> shapes;
  std::set<std::string> seen;
  for (const Plan& plan : space(problem, gpu, {.most = 0}).plans) {
    Plan shape = without_cache(plan, problem);
    if (auto* fragments = std::get_if<LinearFragments>(&shape))
      fragments->fusion = LinearFusion::permute;
    if (seen.insert(to_json(shape).dump()).second) shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace vqgen

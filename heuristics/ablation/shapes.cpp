#include "heuristics/ablation/shapes.h"

#include <cmath>
#include <set>

#include "core/config.h"
#include "core/json.h"
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

double distance(const Plan& a, const Plan& b) {
  double sum = 0;
  std::visit(
      [&]<class P>(const P& from) {
        const auto& to = std::get<P>(b);
        for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
          const Member& x = from.*field.member;
          const Member& y = to.*field.member;
          if constexpr (std::is_same_v<Member, int>) {
            if (x != y) sum += std::abs(std::log2((x + 1.0) / (y + 1.0)));
          } else {
            sum += x == y ? 0 : 1;
          }
        });
      },
      a);
  return sum;
}

}  // namespace vqgen

#include "runtime/tuning/search/cost_correction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "heuristics/cost.h"

namespace vqgen {
namespace {

constexpr double kFailed = 4;
constexpr int kPasses = 4;

double shrinkage(std::size_t feature_column) { return feature_column < 2 ? 1 : 4; }

}  // namespace

CostCorrection::CostCorrection(const std::vector<Candidate>& candidates) : candidates_(candidates) {
  std::map<std::tuple<std::string, std::size_t, std::array<int, 4>>, std::size_t> numbers;
  const auto number = [&](const std::string& text, std::size_t column, std::array<int, 4> value) {
    return numbers.try_emplace({text, column, value}, numbers.size()).first->second;
  };
  for (const Candidate& each : candidates) {
    const std::string dataflow(kernel_name(each.plan));
    std::vector<std::size_t> features{number(dataflow, 0, {}), number(each.kind, 1, {})};
    for (const auto& axis : plan_axes(each.plan)) {
      features.push_back(number(dataflow, features.size(), axis));
    }
    features_.push_back(std::move(features));
  }
  effects_.assign(numbers.size(), 0);
}

void CostCorrection::learn(const History& history) {
  struct Residual {
    std::size_t place;
    double left;  // of the logarithm, less all effects
  };
  std::vector<Residual> residuals;
  for (const Answer& answer : history.answers) {
    const double guess = candidates_[answer.place].guess_us;
    residuals.push_back({answer.place, std::log(answer.us ? *answer.us / guess : kFailed)});
  }
  effects_.assign(effects_.size(), 0);
  if (residuals.empty()) return;
  std::vector<double> sums(effects_.size());
  std::vector<double> counts(effects_.size());
  std::size_t columns = 0;  // dataflows have as many as they have fields
  for (const auto& each : features_) columns = std::max(columns, each.size());
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t column = 0; column < columns; ++column) {
      // visit(residual, its feature) of each that has the column.
      const auto for_each = [&](auto&& visit) {
        for (Residual& each : residuals) {
          const auto& features = features_[each.place];
          if (column < features.size()) visit(each, features[column]);
        }
      };
      for_each([&](Residual&, std::size_t feature) { sums[feature] = counts[feature] = 0; });
      for_each([&](Residual& each, std::size_t feature) {
        sums[feature] += each.left + effects_[feature];
        ++counts[feature];
      });
      const auto effect = [&](std::size_t feature) {
        return sums[feature] / (counts[feature] + shrinkage(column));
      };
      for_each([&](Residual& each, std::size_t feature) {
        each.left += effects_[feature] - effect(feature);
      });
      for_each([&](Residual&, std::size_t feature) { effects_[feature] = effect(feature); });
    }
  }
}

double CostCorrection::us(std::size_t place) const {
  double effect = 0;
  for (const std::size_t feature : features_[place]) effect += effects_[feature];
  return candidates_[place].guess_us * std::exp(effect);
}

}  // namespace vqgen

#include "runtime/tuning/search/strategies.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "runtime/verify/random.h"

namespace vqgen {
namespace {

constexpr double kFailed = 4;
constexpr int kPasses = 4;

double shrinkage(std::size_t feature_column) { return feature_column < 2 ? 1 : 4; }

// The places of an order, from its start, that were not asked.
class InOrder : public SearchStrategy {
 public:
  explicit InOrder(std::vector<std::size_t> order) : order_(std::move(order)) {}

  std::vector<std::size_t> next(const History& history, std::size_t most) override {
    std::vector<std::size_t> batch;
    for (; at_ < order_.size() && batch.size() < most; ++at_) {
      if (!history.asked[order_[at_]]) batch.push_back(order_[at_]);
    }
    return batch;
  }

 private:
  std::vector<std::size_t> order_;
  std::size_t at_ = 0;
};

std::vector<std::size_t> shuffled(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t left = size; left > 1; --left) {
    std::swap(order[left - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
  }
  return order;
}

// Collects a batch of distinct places that were not asked.
class Batch {
 public:
  Batch(const History& history, std::size_t most) : taken_(history.asked), most_(most) {}
  bool full() const { return places_.size() >= most_; }
  bool takes(std::size_t place) const { return !full() && !taken_[place]; }
  void add(std::size_t place) {
    if (!takes(place)) return;
    taken_[place] = true;
    places_.push_back(place);
  }
  // The first place of the order that is not taken yet.
  void add_first_of(const std::vector<std::size_t>& order) {
    const auto found =
        std::find_if(order.begin(), order.end(), [&](std::size_t at) { return takes(at); });
    if (found != order.end()) add(*found);
  }
  std::vector<std::size_t> take() { return std::move(places_); }

 private:
  std::vector<bool> taken_;
  std::size_t most_;
  std::vector<std::size_t> places_;
};

// The cheapest place of each kind, the cheapest kind first.
std::vector<std::size_t> first_of_kinds(const TuningSpace& space) {
  std::set<std::string> seen;
  std::vector<std::size_t> places;
  for (const std::size_t place : space.by_cost) {
    if (seen.insert(space.candidates[place].kind).second) places.push_back(place);
  }
  return places;
}

class ModelGuided : public SearchStrategy {
 public:
  ModelGuided(const TuningSpace& space, std::uint64_t seed)
      : correction_(space.candidates),
        order_(space.by_cost),
        kinds_(first_of_kinds(space)),
        drawn_(shuffled(order_.size(), seed)),
        random_(seed, 1) {}

  std::vector<std::size_t> next(const History& history, std::size_t most) override {
    constexpr double kRandomShare = 1.0 / 8;
    correction_.learn(history);
    std::vector<double> cost(order_.size());
    for (std::size_t place = 0; place < cost.size(); ++place) {
      cost[place] = correction_.us(place);
    }
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return cost[a] != cost[b] ? cost[a] < cost[b] : a < b;
    });
    Batch batch(history, most);
    for (std::size_t i = 0; i < most; ++i) {
      if (i % 2 == 0) batch.add_first_of(kinds_);
      batch.add_first_of(random_.chance(kRandomShare) ? drawn_ : order_);
    }
    return batch.take();
  }

 private:
  CostCorrection correction_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> kinds_;
  std::vector<std::size_t> drawn_;
  Random random_;
};

class LocalSearch : public SearchStrategy {
 public:
  LocalSearch(const TuningSpace& space, std::uint64_t seed)
      : space_(space),
        neighbours_(space.candidates),
        drawn_(shuffled(space.candidates.size(), seed)),
        cost_rank_(space.candidates.size()) {
    for (std::size_t i = 0; i < space.by_cost.size(); ++i) cost_rank_[space.by_cost[i]] = i;
  }

  std::vector<std::size_t> next(const History& history, std::size_t most) override {
    Batch batch(history, most);
    if (!started_) {
      started_ = true;
      if (space_.rules) batch.add(*space_.rules);
      for (const std::size_t place : first_of_kinds(space_)) batch.add(place);
      for (std::size_t i = 0; i < most; ++i) batch.add_first_of(space_.by_cost);
      return batch.take();
    }
    std::size_t centres = kCentres;
    for (const std::size_t centre : best_of_climb(history)) {
      std::vector<std::size_t> around = neighbours_.of(centre);
      std::sort(around.begin(), around.end(),
                [&](std::size_t a, std::size_t b) { return cost_rank_[a] < cost_rank_[b]; });
      for (const std::size_t place : around) batch.add(place);
      if (--centres == 0 || batch.full()) break;
    }
    std::vector<std::size_t> places = batch.take();
    return places.empty() ? restart(history, most) : places;
  }

 private:
  static constexpr std::size_t kStarts = 8;
  static constexpr std::size_t kCentres = 3;

  // What this climb measured, the fastest first.
  std::vector<std::size_t> best_of_climb(const History& history) const {
    std::vector<std::pair<double, std::size_t>> timed;
    for (std::size_t i = climb_; i < history.answers.size(); ++i) {
      const Answer& answer = history.answers[i];
      if (answer.us) timed.emplace_back(*answer.us, answer.place);
    }
    std::sort(timed.begin(), timed.end());
    std::vector<std::size_t> places;
    for (const auto& [us, place] : timed) places.push_back(place);
    return places;
  }

  std::vector<std::size_t> restart(const History& history, std::size_t most) {
    climb_ = history.answers.size();
    Batch batch(history, std::min(most, kStarts));
    for (std::size_t i = 0; i < kStarts / 2; ++i) {
      batch.add_first_of(space_.by_cost);
      batch.add_first_of(drawn_);
    }
    return batch.take();
  }

  const TuningSpace& space_;
  Neighbours neighbours_;
  std::vector<std::size_t> drawn_;
  std::vector<std::size_t> cost_rank_;  // by place
  bool started_ = false;
  std::size_t climb_ = 0;  // the answer that the climb began with
};

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
    double left;  // residual of the logarithm, without all effects
  };
  std::vector<Residual> num_codebooks;
  for (const Answer& answer : history.answers) {
    const double guess = candidates_[answer.place].guess_us;
    num_codebooks.push_back({answer.place, std::log(answer.us ? *answer.us / guess : kFailed)});
  }
  effects_.assign(effects_.size(), 0);
  if (num_codebooks.empty()) return;
  std::vector<double> sums(effects_.size());
  std::vector<double> counts(effects_.size());
  std::size_t columns = 0;  // dataflows have as many as they have fields
  for (const auto& each : features_) columns = std::max(columns, each.size());
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t column = 0; column < columns; ++column) {
      // visit(residual, feature) for each observation that has the column.
      const auto for_each = [&](auto&& visit) {
        for (Residual& each : num_codebooks) {
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

std::unique_ptr<SearchStrategy> make_strategy(StrategyName name, const TuningSpace& space,
                                              std::uint64_t seed) {
  switch (name) {
    case StrategyName::exhaustive:
      return std::make_unique<InOrder>(space.by_cost);
    case StrategyName::random:
      return std::make_unique<InOrder>(shuffled(space.candidates.size(), seed));
    case StrategyName::local:
      return std::make_unique<LocalSearch>(space, seed);
    case StrategyName::model:
      break;
  }
  return std::make_unique<ModelGuided>(space, seed);
}

}  // namespace vqgen

#include "runtime/ablate.h"

#include <algorithm>
#include <set>

#include "core/problem/config.h"

namespace vqgen {
namespace {

constexpr std::size_t kRounds = 4;

class Search {
 public:
  Search(const AblationSpace& space, std::size_t budget, const MeasurePlans& measure)
      : space_(space), left_(budget), measure_(measure) {
    result_.rows.resize(space.rows().size());
  }

  Ablation run() {
    const std::size_t closing = left_ / 16;
    const std::size_t quarter = (left_ - closing + 3) / 4;
    ask(shares(quarter, true), &AblationSpace::spread);
    ask(shares(quarter, false), &AblationSpace::expected);
    for (std::size_t round = 0; round < kRounds; ++round) {
      refine((left_ - std::min(left_, closing)) / (kRounds - round));
    }
    close();
    for (std::size_t i = 0; i < result_.rows.size(); ++i) say_why(i);
    return std::move(result_);
  }

 private:
  bool live(std::size_t row) const { return space_.rows()[row].refused.empty(); }

  // How many of `quota` plans each row may ask for: equal parts, the first rows one more.
  std::vector<std::size_t> shares(std::size_t quota, bool spreading) const {
    std::vector<std::size_t> shares(result_.rows.size(), 0);
    for (bool some = true; some && quota > 0;) {
      some = false;
      for (std::size_t i = 0; i < shares.size() && quota > 0; ++i) {
        if (!live(i) || (spreading && !space_.rows()[i].spread)) continue;
        ++shares[i];
        --quota;
        some = true;
      }
    }
    return shares;
  }

  TakePlan taker() {
    return [this](const Plan& plan) {
      if (batch_.size() >= left_ || !seen_.insert(to_json(plan).dump()).second) return false;
      batch_.push_back(plan);
      return true;
    };
  }

  // The plans that `propose` has for each row's share.
  template <class Propose>
  void ask(const std::vector<std::size_t>& shares, Propose propose) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      (space_.*propose)(space_.rows()[i], shares[i], taker());
    }
    measure();
  }

  // Rows by the time of their best, the fastest first.
  std::vector<std::size_t> winners() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < result_.rows.size(); ++i) {
      if (result_.best(i) != nullptr) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return result_.best(a)->time_us < result_.best(b)->time_us;
    });
    return order;
  }

  // Half of each row's share goes to winners' shapes under the row, one plan per shape. The rest
  // goes to the shapes nearest to the row's own best.
  void refine(std::size_t quota) {
    const std::vector<std::size_t> shares = this->shares(quota, false);
    const std::vector<std::size_t> order = winners();
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const AblationRow& row = space_.rows()[i];
      const std::size_t end = batch_.size() + shares[i];
      const auto open = [&] { return end - std::min(end, batch_.size()); };
      const Measurement* own = result_.best(i);
      for (const std::size_t winner : order) {
        if (open() > shares[i] / 2) {
          space_.relay(row, result_.best(winner)->plan, 1, taker());
        }
      }
      if (own != nullptr) space_.nearest(row, own->plan, open(), taker());
      space_.spread(row, open(), taker());
    }
    measure();
  }

  // Measures the winner's shape under each row once more, GC* and SC* first, then the shapes of the
  // other rows' winners. No new shape follows: it could win without a try under the other rows.
  void close() {
    for (const std::size_t winner : winners()) {
      if (batch_.size() >= left_) break;
      const Plan best = result_.best(winner)->plan;
      for (std::size_t i = result_.rows.size(); i-- > 0;) {
        constexpr std::size_t kFusions = 3;
        if (live(i) && space_.rows()[i].spread) {
          space_.relay(space_.rows()[i], best, kFusions, taker());
        }
      }
    }
    measure();
  }

  void measure() {
    if (batch_.empty()) return;
    for (Measurement& each : measure_(batch_)) {
      result_.measurements.push_back(std::move(each));
      enter(result_.measurements.size() - 1);
    }
    left_ -= batch_.size();
    batch_.clear();
  }

  void enter(std::size_t at) {
    const Measurement& measured = result_.measurements[at];
    for (std::size_t i = 0; i < result_.rows.size(); ++i) {
      AblatedRow& row = result_.rows[i];
      if (!space_.variant_of(space_.rows()[i], measured.plan)) continue;
      ++row.plans;
      if (measured.outcome != Outcome::timed) {
        if (row.why.empty()) row.why = measured.why;
        continue;
      }
      if (!is_time(measured.time_us)) continue;
      const Measurement* best = result_.best(i);
      if (best == nullptr || measured.time_us < best->time_us) row.best = at;
    }
  }

  void say_why(std::size_t i) {
    AblatedRow& row = result_.rows[i];
    if (row.best) {
      row.why.clear();
    } else if (!live(i)) {
      row.why = space_.rows()[i].refused;
    } else if (row.plans == 0) {
      row.why = "not measured: the budget was spent; raise it";
    } else if (row.why.empty()) {
      row.why = "no plan has a time";
    }
  }

  const AblationSpace& space_;
  std::size_t left_;
  const MeasurePlans& measure_;
  Ablation result_;
  std::vector<Plan> batch_;
  std::set<std::string> seen_;
};

}  // namespace

std::optional<double> Ablation::ratio(std::size_t a, std::size_t b) const {
  if (best(a) == nullptr || best(b) == nullptr) return std::nullopt;
  return best(a)->time_us / best(b)->time_us;
}

Ablation ablate(const AblationSpace& space, std::size_t budget, const MeasurePlans& measure) {
  return Search(space, budget, measure).run();
}

}  // namespace vqgen

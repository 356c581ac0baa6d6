// Supervision: a batch of candidates is measured by attempts, and an attempt may die of one of
// them. That one is marked, and the next attempt takes up the others. The same for a device in this
// process and for one in a worker process; only what an attempt is differs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"
#include "runtime/tuning/measure/workbench.h"

namespace vqgen {

using Clock = std::chrono::steady_clock;

// What an attempt has reported so far: results, and which candidates are in flight since when.
class Ledger {
 public:
  explicit Ledger(const Job& job) : job_(job), candidates_(job.plans.size()) {}

  // False, and nothing changes, where the report does not fit those before it, or is no result: a
  // time that is not above 0 and finite.
  bool take(const Report& report);

  struct Flight {
    Step step;  // compiling or running
    Clock::time_point since;
  };
  const std::map<std::size_t, Flight>& in_flight() const { return in_flight_; }
  // Whether all that the job asks for is there.
  bool whole() const;

  const std::optional<Measurement>& measured(std::size_t i) const {
    return candidates_[i].measured;
  }
  const std::vector<double>& us(std::size_t i) const { return candidates_[i].us; }

 private:
  struct State {
    bool begun = false;  // to compile
    std::optional<Measurement> measured;
    std::vector<double> us;  // a round each
  };
  bool fits(const Report& report) const;

  const Job& job_;
  std::vector<State> candidates_;
  std::map<std::size_t, Flight> in_flight_;
  bool running_ = false;
};

// How an attempt ended early. Those who hung are sure; of several suspects of a crash, who were
// compiled at once, it may be any.
struct Death {
  Outcome outcome = Outcome::crashed;
  std::string why;
  std::vector<std::size_t> suspects;  // may be none
};

// Does the job as far as it comes; reports go into the ledger. nullopt where that is whole. Throws
// when deaths without a suspect do not end.
using Attempt = std::function<std::optional<Death>(const Job& job, Ledger& ledger)>;

// Evaluator::screen() and finals() by attempts. Plans are compiled one by one after a crash with
// several suspects, so that the next one has one. In finals an unfinished round counts for nobody.
std::vector<Measurement> supervise_screen(std::span<const Plan> plans, const Attempt& attempt);
std::vector<FinalTimes> supervise_finals(std::span<const Plan> plans, int rounds,
                                         const Attempt& attempt);

}  // namespace vqgen

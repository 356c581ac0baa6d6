// Jobs on a workbench, and their supervision.
//
// A workbench measures candidates one by one, each step a call, so that whoever watches knows which
// candidate a hang or a crash is of. A job is done on one: a batch screened, or the rounds of
// finals. It is measured by attempts, and an attempt may die of one of its candidates. That one is
// marked, and the next attempt takes up the others. The same for a device in this process and for
// one in a worker process; only what an attempt is differs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

// Told of each candidate by the thread that compiles it.
struct CompileWatch {
  std::function<void(std::size_t)> begun;
  std::function<void(std::size_t)> ended;
};

// Candidates are numbered as the plans of the last compile(). Not thread-safe.
class Workbench {
 public:
  virtual ~Workbench() = default;

  // Lets go of all candidates and compiles these: in parallel, or one by one where `serial`.
  virtual void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) = 0;

  // One candidate verified and timed. Error(device) where the device may be lost.
  virtual Measurement screen(std::size_t candidate) = 0;

  // Verified and kept for rounds; timed, without its times, where it is fit for them.
  virtual Measurement seat(std::size_t candidate) = 0;
  // Places all data elsewhere on the device; what is seated stays so. Error(device).
  virtual void move_data() = 0;
  // One round of a seated one: microseconds of a call.
  virtual double round_us(std::size_t candidate) = 0;
};

enum class JobKind { screen, finals };
template <>
inline constexpr auto enum_names<JobKind> = std::array{"screen", "finals"};

struct Job {
  JobKind kind = JobKind::screen;
  std::vector<Plan> plans;
  bool serial = false;  // compile one by one
  int first_round = 0;  // of finals
  int rounds = 0;
};

// What happens to a candidate. Every step that may hang or crash begins with a report of its own.
// finals: first each is measured, which tells whether it takes part, then timed once a round.
enum class Step { compiling, compiled, running, measured, timed };
template <>
inline constexpr auto enum_names<Step> =
    std::array{"compiling", "compiled", "running", "measured", "timed"};

struct Report {
  Step step = Step::compiling;
  std::size_t candidate = 0;
  Measurement measurement = {};  // of measured
  double us = 0;                 // of timed
};

// Calls `report` by one thread at a time. In round r the candidates have their turns from the r-th
// on; where a batch of rounds begins, data moves. Error(device) as the workbench.
void do_job(Workbench& bench, const Job& job, const std::function<void(const Report&)>& report);

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

// Time of a scope, added up.
class Stopwatch {
 public:
  // Adds to `total_s` when it goes.
  explicit Stopwatch(double& total_s) : total_s_(total_s) {}
  ~Stopwatch() {
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    total_s_ += spent.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_s_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace vqgen

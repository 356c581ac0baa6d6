// Jobs on a workbench, and their supervision.
//
// A workbench measures candidates one by one, each step a call, so that a watcher knows which
// candidate hangs or crashes. A job is a batch to screen, or the rounds of finals. It is done in
// attempts: one may die of a candidate, which is marked, and the next attempt continues with the
// others. Devices in this process and in a worker process differ only in their attempts.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

// The thread that compiles a candidate calls these.
struct CompileWatch {
  std::function<void(std::size_t)> begun;
  std::function<void(std::size_t)> ended;
};

// Candidates are numbered as the plans of the last compile(). Not thread-safe.
class Workbench {
 public:
  virtual ~Workbench() = default;

  // Releases all candidates and compiles these: in parallel, or one by one if `serial`.
  virtual void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) = 0;

  // Verifies and times one candidate. Throws Error(device) if the device may be lost.
  virtual Measurement screen(std::size_t candidate) = 0;

  // Verifies a candidate and keeps it for rounds. The outcome is timed, without times, if it is
  // fit.
  virtual Measurement seat(std::size_t candidate) = 0;
  // Moves all data elsewhere on the device; seated candidates stay seated. Throws Error(device).
  virtual void move_data() = 0;
  // One round of a seated candidate: microseconds per call.
  virtual double round_us(std::size_t candidate) = 0;
};

enum class JobKind { screen, finals };
template <>
inline constexpr auto enum_names<JobKind> = std::array{"screen", "finals"};

struct Job {
  JobKind kind = JobKind::screen;
  std::vector<Plan> plans;
  bool serial = false;  // compile one by one
  int first_round = 0;  // finals only
  int rounds = 0;
};

// What happens to a candidate. Every step that may hang or crash begins with its own report. Finals
// first measure each candidate, which tells whether it takes part, then time it once per round.
enum class Step { compiling, compiled, running, measured, timed };
template <>
inline constexpr auto enum_names<Step> =
    std::array{"compiling", "compiled", "running", "measured", "timed"};

struct Report {
  Step step = Step::compiling;
  std::size_t candidate = 0;
  Measurement measurement = {};  // if measured
  double us = 0;                 // if timed
};

// Calls `report` from one thread at a time. In round r turns begin with candidate r; data moves at
// the start of each batch of rounds. Throws Error(device) as the workbench does.
void do_job(Workbench& bench, const Job& job, const std::function<void(const Report&)>& report);

using Clock = std::chrono::steady_clock;

// An attempt's reports so far: results, and which candidates are in flight since when.
class Ledger {
 public:
  explicit Ledger(const Job& job) : job_(job), candidates_(job.plans.size()) {}

  // Returns false and changes nothing if the report does not fit the previous ones, or has a time
  // that is not above 0 and finite.
  bool take(const Report& report);

  struct Flight {
    Step step;  // compiling or running
    Clock::time_point since;
  };
  const std::map<std::size_t, Flight>& in_flight() const { return in_flight_; }
  // True if all results that the job asks for are there.
  bool whole() const;

  const std::optional<Measurement>& measured(std::size_t i) const {
    return candidates_[i].measured;
  }
  const std::vector<double>& us(std::size_t i) const { return candidates_[i].us; }

 private:
  struct State {
    bool begun = false;  // compiling has begun
    std::optional<Measurement> measured;
    std::vector<double> us;  // one per round
  };
  bool fits(const Report& report) const;

  const Job& job_;
  std::vector<State> candidates_;
  std::map<std::size_t, Flight> in_flight_;
  bool running_ = false;
};

// How an attempt ended early. A hung suspect is certain; if several candidates were compiling
// during a crash, any of them may be the cause.
struct Death {
  Outcome outcome = Outcome::crashed;
  std::string why;
  std::vector<std::size_t> suspects;  // may be none
};

// Does the job as far as possible and records reports in the ledger. Returns nullopt if the ledger
// is whole. Throws if deaths without a suspect go on.
using Attempt = std::function<std::optional<Death>(const Job& job, Ledger& ledger)>;

// Implements Evaluator::screen() and finals() by attempts. After a crash with several suspects,
// plans are compiled one by one, so that the next crash has one. In finals an unfinished round
// counts for no plan.
std::vector<Measurement> supervise_screen(std::span<const Plan> plans, const Attempt& attempt);
std::vector<FinalTimes> supervise_finals(std::span<const Plan> plans, int rounds,
                                         const Attempt& attempt);

// Adds up the time of scopes.
class Stopwatch {
 public:
  // Adds to `total_s` on destruction.
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

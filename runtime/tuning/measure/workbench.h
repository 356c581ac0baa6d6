// Workbench: what measures candidates one by one, each step a call, so that whoever watches knows
// which candidate a hang or a crash is of. And the jobs that are done on one: a batch screened, or
// the rounds of finals.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/measure.h"

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

}  // namespace vqgen

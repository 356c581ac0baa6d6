// WorkerEvaluator: measures candidates in a child process under a watchdog. A candidate that hangs
// is killed and marked, one that crashes is marked, and a new child continues with the others.
#pragma once

#include <memory>

#include "runtime/process/child.h"
#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen {

struct WorkerOptions {
  // The program and arguments of a process that calls serve_worker(): vqgen tune-worker.
  std::vector<std::string> command;
  // Seconds until a silent child is taken for hung, by what it is doing.
  double start_s = 600;    // data, reference and upload of its problem
  double compile_s = 120;  // one candidate
  double run_s = 60;       // verifying and timing one candidate, or one round of a final
  int most_deaths = 3;     // deaths in a row of children that had no candidate
};

class WorkerEvaluator final : public Evaluator {
 public:
  // The first child starts with the first call.
  WorkerEvaluator(const WorkerSetup& setup, WorkerOptions options);

  // Both throw Error(device), with the child's message, if the first child finds no device or
  // cannot start, and if one after another dies without a candidate.
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  // Seconds of the calls, with the starts of all children but the first: its data and reference
  // belong to no candidate.
  double spent_s() const override { return spent_s_ - first_start_s_; }

  // Children started so far.
  int started() const { return started_; }

 private:
  // The child sees this process's environment. It is ended by SIGTERM, since it has temporary files
  // and children of its own.
  struct Worker {
    explicit Worker(const std::vector<std::string>& command)
        : talk({.command = command, .farewell = Farewell::terminate}) {}
    ChildTalk talk;
    LineBuffer lines{std::size_t{1} << 20};
  };

  std::optional<Death> attempt(const Job& job, Ledger& ledger);
  std::optional<Death> follow(const Job& job, Ledger& ledger);
  void start();
  std::optional<WorkerWord> hear(Clock::time_point deadline, std::string& why, bool& silent);
  bool greet(std::string& why);
  Death died(std::string why, const Ledger& ledger);
  Death hung(const Ledger& ledger);
  void count_death(const std::string& why);
  Clock::time_point deadline(const Ledger& ledger) const;
  double limit_s(Step step) const;

  std::string setup_;
  WorkerOptions options_;
  std::unique_ptr<Worker> child_;
  bool greeted_ = false;  // candidates begun by any child
  int deaths_ = 0;        // in a row, without a candidate
  int started_ = 0;
  double spent_s_ = 0;
  double first_start_s_ = 0;
};

}  // namespace vqgen

// WorkerEvaluator: candidates measured in a child process under a watchdog. What hangs is killed
// and marked, what crashes is marked, and a new child goes on with the others.
#pragma once

#include <memory>

#include "runtime/process/child.h"
#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen {

struct WorkerOptions {
  // Program and arguments of a process that calls serve_worker(): vqgen tune-worker.
  std::vector<std::string> command;
  // Seconds until a child without an answer is taken for hung, by what it is at.
  double start_s = 600;    // data, reference and upload of its problem
  double compile_s = 120;  // one candidate
  double run_s = 60;       // verifying and timing one candidate, or one round of a final
  int most_deaths = 3;     // one after another, of children that were at no candidate
};

class WorkerEvaluator final : public Evaluator {
 public:
  // The first child starts with the first call.
  WorkerEvaluator(const WorkerSetup& setup, WorkerOptions options);

  // Both: Error(device) with the child's own message where the first one finds no device or cannot
  // start at all, and where one after another dies without having begun a candidate.
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  // Of the calls, with the starts of children but for the first: what its data and reference take
  // is no part of any candidate's.
  double spent_s() const override { return spent_s_ - first_start_s_; }

  // Children started so far.
  int started() const { return started_; }

 private:
  // It sees this process's environment, and is asked to end by SIGTERM, since it has temporary
  // files and children of its own.
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
  bool greeted_ = false;  // by any child
  int deaths_ = 0;        // in a row, at no candidate
  int started_ = 0;
  double spent_s_ = 0;
  double first_start_s_ = 0;
};

}  // namespace vqgen

// Evaluator: what a search asks of the world. Its implementations are a device in this process, a
// device in a worker process under a watchdog, a recorded landscape, and a journal in front of any
// of them.
//
//   search/   what is asked: strategies, races, the tuning of one problem
//   measure/  a batch of candidates on a device, and what happens when one of them dies
//   worker/   that device in a process of its own
//   journal/  recorded answers
//   sweep/    the problems of a model, their shards, and the table of the rows
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/measure.h"

namespace vqgen {

// The times of one finalist, one per round. If it failed in a round there are fewer, with the
// outcome and why.
struct FinalTimes {
  std::vector<double> us;
  Outcome outcome = Outcome::timed;
  std::string why;
};

// Splits the rounds of finals into nearly equal batches, each with its own buffers: processes
// differ by where buffers are, and rounds on the same buffers agree. A batch has at least two
// rounds, so that the spread within it is known too.
inline constexpr int kFinalBatches = 5;
constexpr int final_batches(int rounds) { return std::clamp(rounds / 2, 1, kFinalBatches); }
// The batch of a round from 0 to rounds - 1.
constexpr int batch_of(int round, int rounds) { return round * final_batches(rounds) / rounds; }

// Not thread-safe. A plan's failure, even one that kills its process, is its outcome and never an
// exception. Throws Error only if nothing can be measured.
class Evaluator {
 public:
  virtual ~Evaluator() = default;

  // Checks, compiles and verifies each plan against the reference with guards around all buffers,
  // then times it over few replays. Returns measurements in the order of `plans`.
  virtual std::vector<Measurement> screen(std::span<const Plan> plans) = 0;

  // Times plans again that screen() timed: in each of `rounds` rounds all have a turn, in an order
  // that differs from round to round, in batches as above. us[r] of all plans belong to one round,
  // so that they can be compared in pairs.
  virtual std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) = 0;

  // Seconds of measuring so far: the clock of budgets. Never decreases.
  virtual double spent_s() const = 0;
};

}  // namespace vqgen

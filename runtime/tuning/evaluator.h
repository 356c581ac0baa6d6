// Evaluator: what a search asks of the world. Behind it stand a device in this process, a device in
// a worker process under a watchdog, a recorded landscape, or a journal in front of any of them.
//
//   search/   what is asked: strategies, races, the tuning of one problem
//   measure/  a batch of candidates on a device, and what becomes of it when one of them dies
//   worker/   that device in a process of its own
//   journal/  answers that were recorded
//   sweep/    the problems of a model, their shards, and the table that takes the rows
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/measure.h"

namespace vqgen {

// Times of one finalist, a round each; shorter than the rounds asked for where it failed in one,
// with the outcome and why.
struct FinalTimes {
  std::vector<double> us;
  Outcome outcome = Outcome::timed;
  std::string why;
};

// Rounds of finals fall into batches, nearly equally long, and each batch has buffers of its own:
// where these stand is what one process differs from the next by, and rounds on the same buffers
// agree on it. Of two rounds at least, so that what differs within a batch is known too.
inline constexpr int kFinalBatches = 5;
constexpr int final_batches(int rounds) { return std::clamp(rounds / 2, 1, kFinalBatches); }
// Of round 0 .. rounds - 1.
constexpr int batch_of(int round, int rounds) { return round * final_batches(rounds) / rounds; }

// Not thread-safe. What a plan does wrong, to the point of killing its process, is its outcome and
// never an exception. Error is for a world that cannot measure at all.
class Evaluator {
 public:
  virtual ~Evaluator() = default;

  // Each plan checked, compiled, verified against the reference with guards around all buffers,
  // and then timed over few replays. In the order of `plans`.
  virtual std::vector<Measurement> screen(std::span<const Plan> plans) = 0;

  // Plans that screen() timed, timed again: `rounds` rounds in each of which all have their turn,
  // in an order that differs from round to round, in batches as above. us[r] of all plans belong to
  // one round, so that they can be compared in pairs.
  virtual std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) = 0;

  // Seconds that measuring took so far: the clock of budgets. Never decreases.
  virtual double spent_s() const = 0;
};

}  // namespace vqgen

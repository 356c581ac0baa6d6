// What measurements say of the cost model: factors of its expectation (or guess, where it has
// none), by dataflow, by kind of plan and by the value of each field within a dataflow.
//
// log(measured / guess) of a plan is taken as the sum of its factors' logarithms. They are
// fitted by passes of means of what the others leave over, each shrunk to 0 (factor 1) as if
// further measurements had agreed with the model: one for a dataflow and for a kind, which decide
// most, four for a field's value. So what was not measured is as the model says.
#pragma once

#include <vector>

#include "runtime/tuning/search/history.h"
#include "runtime/tuning/search/tuning_space.h"

namespace vqgen {

class CostCorrection {
 public:
  explicit CostCorrection(const std::vector<Candidate>& candidates);

  // Forgets what it learnt before. A candidate that failed counts as four times its guess,
  // so that a kind that keeps failing is left.
  void learn(const History& history);

  // Of a place.
  double us(std::size_t place) const;

 private:
  const std::vector<Candidate>& candidates_;
  std::vector<std::vector<std::size_t>> features_;  // [place]: dataflow, kind, then the fields
  std::vector<double> effects_;                     // by feature, logarithms
};

}  // namespace vqgen

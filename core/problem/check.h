// Decides if vqgen has a kernel for a problem at all; heuristics/check.h decides about plans.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/problem/problem.h"

namespace vqgen {

struct Verdict {
  bool ok = true;
  std::string reason;  // why not, with the figure and the remedy; empty where ok
};

// Keeps the first reason against.
class Judge {
 public:
  template <class... Args>
  void require(bool fine, fmt::format_string<Args...> reason, Args&&... args) {
    if (fine || !verdict_.ok) return;
    verdict_ = {false, fmt::format(reason, std::forward<Args>(args)...)};
  }
  const Verdict& verdict() const { return verdict_; }
  bool ok() const { return verdict_.ok; }

 private:
  Verdict verdict_;
};

Verdict check(const Problem& problem);

// judge_problem() by op.
void judge_problem(Judge& judge, const AttentionDecode& op);
void judge_problem(Judge& judge, const KvAppend& op);
void judge_problem(Judge& judge, const KvDequantize& op);
void judge_problem(Judge& judge, const AttentionMerge& op);
inline void judge_problem(Judge&, const ScalarMatrix&) {}  // all that is valid
void judge_problem(Judge& judge, const Linear& op);
void judge_problem(Judge& judge, const WeightDequantize& op);

}  // namespace vqgen

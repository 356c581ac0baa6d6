// What the judgements of plans have in common (check.h): the judge, and the rules that hold
// whatever the op. Each op's own stand in a file of theirs.
#pragma once

#include <fmt/format.h>
#include <vq/layout/format.h>
#include <vq/layout/splits.h>

#include <cstdint>

#include "core/check.h"

namespace vqgen {

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

// `units` is how many units' codebooks a block keeps near at once.
void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand);

void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu);

// `counters` are those that the plan's last blocks need.
template <class OpPlan>
void judge_combine(Judge& judge, const OpPlan& plan, std::int64_t counters) {
  if (plan.combine == Combine::kernel) return;
  judge.require(plan.splits > 1,
                "combine last_block has nothing to merge with splits 1; use kernel");
  judge.require(counters <= vq::kMostCounters,
                "combine last_block takes {} counters, a workspace has {}; use kernel", counters,
                vq::kMostCounters);
}

void judge_plan(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                const GpuSpec& gpu);
void judge_plan(Judge& judge, const LinearPlan& plan, const Linear& op, const GpuSpec& gpu);
void judge_plan(Judge& judge, const KvAppendPlan& plan, const KvAppend& op, const GpuSpec& gpu);

}  // namespace vqgen

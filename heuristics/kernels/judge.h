// What the judgements of plans have in common: the rules that hold whatever the op.
#pragma once

#include <cstdint>

#include "heuristics/check.h"

namespace vqgen {

// The range that each field declares: plans come from code too, not only from JSON.
template <HasFields T>
void judge_ranges(Judge& judge, const T& plan) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const double value = plan.*field.member;
      judge.require(value >= field.rule.min && value <= field.rule.max,
                    "{} {} is not within {:.0f}..{:.0f}", field.name, value, field.rule.min,
                    field.rule.max);
    } else if constexpr (HasFields<Member>) {
      judge_ranges(judge, plan.*field.member);
    }
  });
}

// `units` is how many units' codebooks a block keeps near at once.
void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand);

void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu);

// Of a plan that merges `splits` splits; `counters` are those that its last blocks need.
void judge_combine(Judge& judge, Combine combine, int splits, std::int64_t counters);

}  // namespace vqgen

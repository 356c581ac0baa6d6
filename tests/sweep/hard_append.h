// Input of kv_append that estimates of distances decide worst.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/plan.h"
#include "core/problem/problem.h"
#include "runtime/ops/kv_append/reference.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {

// Sub-vectors midway between two entries, of books whose entries are copies of others, of the first
// 32 in turn or all one, too; such as are so far from all entries, which lie to one side, that
// estimates of the nearest are about 0 where those of others are far below; numbers near both ends
// of the range, once by factors of stages; and none.
enum class Hard { halfway, copies, in_turn, one_entry, one_side, large, small, scaled, none };
inline constexpr std::array kAllHard{Hard::halfway,   Hard::copies,   Hard::in_turn,
                                     Hard::one_entry, Hard::one_side, Hard::large,
                                     Hard::small,     Hard::scaled,   Hard::none};

// Keys in parts are as make_append_data() has them, but for rows of no numbers.
AppendData hard_data(const KvAppend& op, Hard kind);

// Words of codes that differ.
std::size_t differences(const AppendResult& a, const AppendResult& b);

// Each kind of hard input has the bits of append_simt by each of the plans, which check() accepts.
void expect_bits_of_lanes(const KvAppend& op, const std::vector<Plan>& plans);

// Kernels of the plan that have one of the faults differ from append_simt on some hard input.
void expect_estimates_checked(const KvAppend& op, const Plan& plan, std::span<const Fault> faults);

}  // namespace vqgen::test

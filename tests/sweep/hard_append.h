// Inputs of kv_append for which estimates of distances decide worst.
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

// Sub-vectors midway between two entries; books of copied entries, of the first 32 repeated, or of
// one entry; sub-vectors so far from all entries, on one side, that the nearest one's estimate is
// about 0; numbers near both ends of the range, also by stage scales; NaN and infinity.
enum class Hard { halfway, copies, in_turn, one_entry, one_side, large, small, scaled, none };
inline constexpr std::array kAllHard{Hard::halfway,   Hard::copies,   Hard::in_turn,
                                     Hard::one_entry, Hard::one_side, Hard::large,
                                     Hard::small,     Hard::scaled,   Hard::none};

// Each part is hard by itself.
AppendData hard_data(const KvAppend& op, Hard kind);

// Words of codes that differ.
std::size_t differences(const AppendResult& a, const AppendResult& b);

// Expects append_simt's bits from each plan, which check() accepts, for each kind of hard input.
void expect_bits_of_lanes(const KvAppend& op, const std::vector<Plan>& plans);

// Expects each faulty kernel of the plan to differ from append_simt on some hard input.
void expect_estimates_checked(const KvAppend& op, const Plan& plan, std::span<const Fault> faults);

}  // namespace vqgen::test

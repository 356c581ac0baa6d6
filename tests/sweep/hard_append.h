// Input of kv_append that estimates of distances decide worst.
#pragma once

#include <array>
#include <cstddef>

#include "core/problem/problem.h"
#include "runtime/verify/reference_append.h"

namespace vqgen::test {

// Sub-vectors midway between two entries, of books whose entries are copies of others or all one,
// too; numbers near both ends of the range, once by factors of stages; and none.
enum class Hard { halfway, copies, one_entry, large, small, scaled, none };
inline constexpr std::array kAllHard{Hard::halfway, Hard::copies, Hard::one_entry, Hard::large,
                                     Hard::small,   Hard::scaled, Hard::none};

// Keys in parts are as make_append_data() has them, but for rows of no numbers.
AppendData hard_data(const KvAppend& op, Hard kind);

// Words of codes that differ.
std::size_t differences(const AppendResult& a, const AppendResult& b);

}  // namespace vqgen::test

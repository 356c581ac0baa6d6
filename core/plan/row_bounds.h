// Bounds of what a tuned row can hold; writers check measurements against them.
#pragma once

namespace vqgen {

inline constexpr double kShortestUs = 1e-4;  // time of a call
inline constexpr double kLongestUs = 1e9;
inline constexpr double kMostRelErr = 1;  // error of its result

}  // namespace vqgen

// What a tuned row can say: who writes rows judges by it what was measured.
#pragma once

namespace vqgen {

inline constexpr double kShortestUs = 1e-4;  // of a call
inline constexpr double kLongestUs = 1e9;
inline constexpr double kMostRelErr = 1;  // of its result

}  // namespace vqgen

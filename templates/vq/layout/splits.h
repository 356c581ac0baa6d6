// How the sums of splits become one, and the workspace of a call that has any:
//
//   counters, kCounterBytes | partial scores (dataflow channels) | partials
//
// Calls that follow each other on a stream may share a workspace, so the counters stand at its
// front whatever the op: what one call leaves of its partials is never another's counter.
#pragma once

#include <vq/types.h>

namespace vq {

// kKernel: a second kernel. kLastBlock: of the blocks that share a result the one that ends last,
// which it learns from a counter; 0 before and after each launch.
enum class Combine : int { kKernel = 0, kLastBlock = 1 };

inline constexpr i64 kCounterBytes = 65536;
inline constexpr i64 kMostCounters = kCounterBytes / 4;

}  // namespace vq

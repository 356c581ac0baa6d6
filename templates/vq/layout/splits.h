// How the sums of splits become one, and the workspace of a call that has any:
//
//   counters, kCounterBytes | partial scores (dataflow channels) | partials
//
// Calls that follow each other on a stream may share a workspace, so the counters stand at its
// front whatever the op: what one call leaves of its partials is never another's counter.
#pragma once

#include <vq/types.h>

namespace vq {

inline constexpr i64 kCounterBytes = 65536;
inline constexpr i64 kMostCounters = kCounterBytes / 4;

}  // namespace vq

// Where a call's workspace has its counters, the data that a kernel hands to the next, and partials
// (vq/layout/launch.h).
#pragma once

#include <cstddef>

#include <vq/layout/launch.h>
#include <vq/types.h>

namespace vqgen {

// Bytes of a call's workspace behind its counters.
inline std::size_t bytes_behind_counters(const vq::CallShape& shape) {
  const std::int64_t bytes = shape.workspace_bytes;
  return static_cast<std::size_t>(bytes > 0 ? bytes - vq::kCounterBytes : 0);
}

// The parts of a workspace: `handed_bytes` of the `bytes` behind the counters are handed from
// kernel to kernel. `counters` may be null if the plan does not count, `workspace` if `bytes` is 0.
struct WorkspaceParts {
  void* counters;
  void* workspace;
  std::size_t bytes;
  std::size_t handed_bytes;
};

// Sets the arguments that point into the workspace, as far as the op has them. A part that the plan
// lacks is null.
template <class Args>
void point_into_workspace(Args& args, const WorkspaceParts& parts) {
  auto* const handed = static_cast<std::byte*>(parts.workspace);
  const auto part = [](std::byte* begin, std::size_t bytes) { return bytes > 0 ? begin : nullptr; };
  if constexpr (requires { args.counters; }) args.counters = static_cast<vq::u32*>(parts.counters);
  if constexpr (requires { args.scores; }) {
    args.scores = reinterpret_cast<float*>(part(handed, parts.handed_bytes));
  } else if constexpr (requires { args.staged; }) {
    args.staged = reinterpret_cast<vq::u8*>(part(handed, parts.handed_bytes));
  }
  if constexpr (requires { args.partials; }) {
    args.partials = reinterpret_cast<float*>(
        part(handed + parts.handed_bytes, parts.bytes - parts.handed_bytes));
  }
}

}  // namespace vqgen

// Where a call finds its counters, what a kernel hands to the next, and partials
// (vq/layout/launch.h).
#pragma once

#include <cstddef>
#include <type_traits>

#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_dequantize.h>
#include <vq/args/linear.h>
#include <vq/args/scalar_matrix.h>
#include <vq/layout/launch.h>

namespace vqgen {

// Bytes of a call's workspace behind its counters.
inline std::size_t bytes_behind_counters(const vq::CallShape& shape) {
  const std::int64_t bytes = shape.workspace_bytes;
  return static_cast<std::size_t>(bytes > 0 ? bytes - vq::kCounterBytes : 0);
}

// Sets the arguments that point to counters, and into the `bytes` of the workspace behind them,
// `handed_bytes` of which are of what is handed on. A part that the plan lacks is null, and so may
// be `counters` of a plan that does not count, and `workspace` where `bytes` is 0.
inline void point_into_workspace(vq::KvAppendArgs&, void*, void*, std::size_t, std::size_t) {}
inline void point_into_workspace(vq::KvDequantizeArgs&, void*, void*, std::size_t, std::size_t) {}
inline void point_into_workspace(vq::AttentionMergeArgs&, void*, void*, std::size_t, std::size_t) {}
template <class Args>
void point_into_workspace(Args& args, void* counters, void* workspace, std::size_t bytes,
                          std::size_t handed_bytes) {
  auto* next = static_cast<std::byte*>(workspace);
  const std::byte* const end = next + bytes;
  const auto take = [&](std::size_t part) {
    std::byte* const begin = next;
    next += part;
    return part > 0 ? begin : nullptr;
  };
  if constexpr (requires { args.counters; }) args.counters = static_cast<vq::u32*>(counters);
  std::byte* const handed = take(handed_bytes);
  if constexpr (std::is_same_v<Args, vq::AttentionDecodeArgs>) {
    args.scores = reinterpret_cast<float*>(handed);
  } else if constexpr (std::is_same_v<Args, vq::LinearArgs>) {
    args.staged = reinterpret_cast<vq::u8*>(handed);
  }
  args.partials = reinterpret_cast<float*>(take(static_cast<std::size_t>(end - next)));
}

}  // namespace vqgen

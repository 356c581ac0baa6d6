// Where a call finds its counters, what a kernel hands to the next, and partials in a workspace
// (vq/layout/launch.h).
#pragma once

#include <cstddef>
#include <type_traits>

#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_decode.h>
#include <vq/args/linear.h>
#include <vq/args/scalar_matrix.h>
#include <vq/layout/launch.h>

namespace vqgen {

// Of a plan whose workspace_bytes() are `bytes`, `handed_bytes` of them of what is handed on: sets
// the arguments that point into it. A part that the plan lacks is null, and `workspace` may be
// where `bytes` is 0.
inline void point_into_workspace(vq::KvAppendArgs&, void*, std::size_t, std::size_t) {}
inline void point_into_workspace(vq::KvDecodeArgs&, void*, std::size_t, std::size_t) {}
inline void point_into_workspace(vq::AttentionMergeArgs&, void*, std::size_t, std::size_t) {}
template <class Args>
void point_into_workspace(Args& args, void* workspace, std::size_t bytes,
                          std::size_t handed_bytes) {
  auto* next = static_cast<std::byte*>(workspace);
  const std::byte* const end = next + bytes;
  const auto take = [&](std::size_t part) {
    std::byte* const begin = next;
    next += part;
    return part > 0 ? begin : nullptr;
  };
  std::byte* const counters = take(bytes > 0 ? vq::kCounterBytes : 0);
  if constexpr (requires { args.counters; }) {
    args.counters = reinterpret_cast<vq::u32*>(counters);
  }
  std::byte* const handed = take(handed_bytes);
  if constexpr (std::is_same_v<Args, vq::AttentionDecodeArgs>) {
    args.scores = reinterpret_cast<float*>(handed);
  } else if constexpr (std::is_same_v<Args, vq::LinearArgs>) {
    args.staged = reinterpret_cast<vq::u8*>(handed);
  }
  args.partials = reinterpret_cast<float*>(take(static_cast<std::size_t>(end - next)));
}

}  // namespace vqgen

// Where a call's workspace has its counters, the data that a kernel hands to the next, and partials
// (vq/layout/launch.h).
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/args/kv_append.h>

#include <cstddef>
#include <utility>

#include "core/plan/plan.h"

namespace vqgen {

// Bytes of a call's workspace behind its counters.
inline std::size_t bytes_behind_counters(const vq::CallShape& shape) {
  const std::int64_t bytes = shape.workspace_bytes;
  return static_cast<std::size_t>(bytes > 0 ? bytes - vq::kCounterBytes : 0);
}

// Where they are: `basis_bytes` of the `bytes` behind the counters are of rows in the basis, then
// `handed_bytes` of what is handed on.
// `counters` may be null for a plan that does not count, and `workspace` where `bytes` is 0.
struct WorkspaceParts {
  void* counters;
  void* workspace;
  std::size_t bytes;
  std::size_t basis_bytes;
  std::size_t handed_bytes;
};

// Has the kernels behind the first read rows in the basis of the cache (vq/layout/basis.h) out of
// the workspace.
template <class Op>
void point_into_basis(vq::AttentionDecodeArgs& args, const Op& op, std::byte* basis) {
  const vq::AttentionProblem problem = facts(op);
  const vq::BasisRows rows = vq::basis_rows(problem, op.shape.batch);
  const auto at = [&](std::int64_t begin) {
    return reinterpret_cast<const vq::u16*>(basis + begin);
  };
  if (!problem.key_basis.none()) {
    args.given_query = std::exchange(args.query, at(rows.query));
    args.given_keys = args.new_keys;
    if (args.new_keys != nullptr) args.new_keys = at(rows.keys);
  }
  if (!problem.value_basis.none()) {
    args.given_values = args.new_values;
    if (args.new_values != nullptr) args.new_values = at(rows.values);
  }
}
template <class Op>
void point_into_basis(vq::KvAppendArgs& args, const Op& op, std::byte* basis) {
  const vq::AppendProblem problem = facts(op);
  const vq::BasisRows rows = vq::basis_rows(problem, op.shape.batch);
  const auto at = [&](std::int64_t begin) {
    return reinterpret_cast<const vq::u16*>(basis + begin);
  };
  if (!problem.key_basis.none()) args.given_keys = std::exchange(args.new_keys, at(rows.keys));
  if (!problem.value_basis.none()) {
    args.given_values = std::exchange(args.new_values, at(rows.values));
  }
}

// Sets the arguments that point there, as far as the op has them. A part that the plan lacks is
// null.
template <class Op, class Args>
void point_into_workspace(Args& args, const Op& op, const WorkspaceParts& parts) {
  auto* const basis = static_cast<std::byte*>(parts.workspace);
  auto* const handed = basis + parts.basis_bytes;
  if constexpr (requires { point_into_basis(args, op, basis); }) {
    if (parts.basis_bytes > 0) point_into_basis(args, op, basis);
  }
  const auto part = [](std::byte* begin, std::size_t bytes) { return bytes > 0 ? begin : nullptr; };
  if constexpr (requires { args.counters; }) args.counters = static_cast<vq::u32*>(parts.counters);
  if constexpr (requires { args.scores; }) {
    args.scores = reinterpret_cast<float*>(part(handed, parts.handed_bytes));
  } else if constexpr (requires { args.staged; }) {
    args.staged = reinterpret_cast<vq::u8*>(part(handed, parts.handed_bytes));
  }
  if constexpr (requires { args.partials; }) {
    args.partials = reinterpret_cast<float*>(
        part(handed + parts.handed_bytes, parts.bytes - parts.basis_bytes - parts.handed_bytes));
  }
}

}  // namespace vqgen

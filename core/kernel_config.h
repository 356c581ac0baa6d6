// Problem and plan as the compile-time facts that device code and shared-memory layout take.
#pragma once

#include <vq/layout/attention_shared.h>
#include <vq/layout/kv_append.h>
#include <vq/layout/linear.h>

#include "core/plan.h"
#include "core/problem.h"

namespace vqgen {

vq::AttentionDecodeConfig kernel_config(const AttentionDecode& op, const AttentionDecodePlan& plan);
vq::LinearConfig kernel_config(const Linear& op, const LinearPlan& plan);
vq::KvAppendConfig kernel_config(const KvAppend& op, const KvAppendPlan& plan);

// Bytes that the partial scores of dataflow channels take in the workspace, behind its counters; 0
// in other dataflows.
std::int64_t score_bytes(const AttentionDecode& op, const AttentionDecodePlan& plan);

// Device memory beside inputs and outputs that one call takes, as vq/layout/splits.h lays it out; 0
// where it takes none. 16-byte aligned. The first vq::kCounterBytes, of any plan that takes some,
// are zeros before a launch and after it, so that plans may share a workspace; the rest needs no
// initialisation.
std::int64_t workspace_bytes(const AttentionDecode& op, const AttentionDecodePlan& plan);
std::int64_t workspace_bytes(const Linear& op, const LinearPlan& plan);
std::int64_t workspace_bytes(const KvAppend& op, const KvAppendPlan& plan);
std::int64_t workspace_bytes(const Problem& problem, const Plan& plan);

}  // namespace vqgen

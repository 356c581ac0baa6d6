// Problem and plan as the compile-time facts that device code and shared-memory layout take.
#pragma once

#include <vq/layout/attention_shared.h>
#include <vq/layout/linear.h>

#include "core/plan.h"
#include "core/problem.h"

namespace vqgen {

vq::AttentionDecodeConfig kernel_config(const AttentionDecode& op, const AttentionDecodePlan& plan);
vq::LinearConfig kernel_config(const Linear& op, const LinearPlan& plan);

// Device memory beside inputs and outputs that one call takes; 0 where it takes none. Needs no
// initialisation; 16-byte aligned.
std::int64_t workspace_bytes(const AttentionDecode& op, const AttentionDecodePlan& plan);
std::int64_t workspace_bytes(const Linear& op, const LinearPlan& plan);

}  // namespace vqgen

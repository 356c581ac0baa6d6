// What each op gives to generate(): its template, its plan as text, its entries.
#pragma once

#include <string>
#include <vector>

#include "core/kernel_source.h"
#include "core/plan.h"
#include "core/problem.h"

namespace vqgen {

struct OpText {
  std::vector<std::string> templates;  // paths, amalgamated in order
  std::string plan;                    // struct Plan
  std::string kernels;                 // VQ_KERNEL entries
  std::vector<KernelEntry> entries;
  std::int64_t args_bytes = 0;
};

OpText op_text(const AttentionDecode& op, const AttentionDecodePlan& plan);
OpText op_text(const KvAppend& op, const KvAppendPlan& plan);
// `name` begins the names of the entries: "gemv" or "gemm".
OpText op_text(const char* name, const Linear& op, const LinearPlan& plan);

}  // namespace vqgen

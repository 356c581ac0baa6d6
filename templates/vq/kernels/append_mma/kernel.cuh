// kv_append by fragments (ops/append_tokens.cuh): tensor cores estimate all distances, and what may
// be nearest is compared as append_simt compares it (ops/append_estimates.cuh).
#pragma once

#include <vq/kernels/append_mma/plan.h>
#include <vq/kernels/append_mma/append_estimates.cuh>
#include <vq/ops/append_tokens.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void kv_append_mma(const KvAppendArgs& args) {
  append_tokens<Plan, AppendEstimates>(args);
}

}  // namespace vq

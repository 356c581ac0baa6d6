// kv_append by products (ops/append_tokens.cuh): tensor cores estimate all distances of wide
// sub-vectors, and what may be nearest is compared as append_simt compares it
// (ops/append_gemm_stage.cuh).
#pragma once

#include <vq/kernels/append_gemm/plan.h>
#include <vq/kernels/append_gemm/stage.cuh>
#include <vq/ops/append_tokens.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void kv_append_gemm(const KvAppendArgs& args) {
  append_tokens<Plan, AppendGemmStage>(args);
}

}  // namespace vq

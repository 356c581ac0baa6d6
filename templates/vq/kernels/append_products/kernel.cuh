// kv_append by products (ops/append_tokens.cuh): tensor cores estimate all distances of wide
// sub-vectors, and what may be nearest is compared as append_lanes compares it
// (ops/append_products_stage.cuh).
#pragma once

#include <vq/kernels/append_products/plan.h>
#include <vq/ops/append_products_stage.cuh>
#include <vq/ops/append_tokens.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void kv_append_products(const KvAppendArgs& args) {
  append_tokens<Plan, AppendProductsStage>(args);
}

}  // namespace vq

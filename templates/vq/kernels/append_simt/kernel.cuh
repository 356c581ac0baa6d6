// simt kv_append (ops/append_tokens.cuh): each entry is compared by the lane that loads it.
#pragma once

#include <vq/kernels/append_simt/plan.h>
#include <vq/ops/append_tokens.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void kv_append_simt(const KvAppendArgs& args) {
  append_tokens<Plan, AppendLaneStage>(args);
}

}  // namespace vq

// mma kv_append (ops/append_tokens.cuh): tensor cores estimate all distances, and candidates for
// the nearest entry are compared as in append_simt (ops/append_estimates.cuh).
#pragma once

#include <vq/kernels/append_mma/plan.h>
#include <vq/kernels/append_mma/append_estimates.cuh>
#include <vq/ops/append_tokens.cuh>

namespace vq {

// Parts of wide sub-vectors are compared as in append_simt.
template <class Share>
using AppendEstimatesOrWide =
    Either<(entry_pieces(Share::kFormat) > 1), AppendWideStage<Share>, AppendEstimates<Share>>;

template <class Plan>
VQ_DEVICE void kv_append_mma(const KvAppendArgs& args) {
  append_tokens<Plan, AppendEstimatesOrWide>(args);
}

}  // namespace vq

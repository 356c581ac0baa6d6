// The query of one block: loaded raw, scaled, transformed for quantized keys.
#pragma once

#include <vq/ops/attention_work.cuh>
#include <vq/transform.cuh>

namespace vq {

// query [heads_per_block][head_dim] becomes q diag(lambda) H (VecInfer eq. 7) and raw_query, where
// it is a place of its own, q; both times `scale`.
// Heads that the block lacks become zeros. Ends with a barrier.
template <class Plan>
VQ_DEVICE void load_query(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work,
                          float scale, float* query, float* raw_query) {
  constexpr AttentionDecodeConfig kConfig = Plan::config();
  constexpr int kHeadDim = kConfig.head_dim;
  constexpr int kHeads = kConfig.heads_per_block;
  const u16* from =
      args.query + (i64{work.batch} * kConfig.query_heads + work.first_head) * kHeadDim;
  for (int i = thread_index(); i < kHeads * kHeadDim; i += kConfig.threads) {
    float value = 0.0f;
    if (i < work.heads * kHeadDim) value = to_float<kConfig.element>(load_global(from + i)) * scale;
    if constexpr (raw_slots(kConfig) > 0 && transformed(kConfig))
      store_shared(raw_query + i, value);
    if constexpr (kConfig.keys.smooth) {
      value *= load_global(args.key_smooth + i64{work.kv_head} * kHeadDim + i % kHeadDim);
    }
    store_shared(query + i, value);
  }
  sync_block();
  if constexpr (kConfig.keys.hadamard) hadamard_rows<kHeadDim, kHeads, kConfig.threads>(query);
}

}  // namespace vq

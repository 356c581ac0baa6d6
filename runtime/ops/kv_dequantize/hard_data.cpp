// Hard data of kv_dequantize: the cache of an attention.
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"

namespace vqgen {

AttentionData make_dequantize_data(const KvDequantize& problem, const HardInput& input) {
  const DequantizeShape& s = problem.shape;
  const AttentionDecode reader{problem.dtype,
                               {.batch = s.batch,
                                .query_heads = s.kv_heads,
                                .kv_heads = s.kv_heads,
                                .head_dim = s.head_dim,
                                .tokens = s.tokens,
                                .recent_tokens = s.recent_tokens,
                                .sinks = s.sinks,
                                .page_tokens = s.page_tokens,
                                .raw_page_tokens = s.raw_page_tokens,
                                .flush_block = s.flush_block,
                                .value_head_dim = s.value_head_dim},
                               problem.keys,
                               problem.values};
  return make_attention_data(reader, input);
}

}  // namespace vqgen

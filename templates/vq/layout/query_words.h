// The query of a block as operand words of tensor cores, in shared memory (ops/query_fragments.cuh,
// ops/query_bytes.cuh).
#pragma once

#include <vq/layout/attention.h>

namespace vq {

// Heads as products have them: in quads.
template <class Plan>
VQ_HD constexpr int quad_heads(const AttentionConfig<Plan>& c) {
  return round_up(c.heads_per_block, 4);
}
// Channels of a query as lanes share them, in quarters of whole octets: zeros from head_dim on.
VQ_HD constexpr int query_span(int head_dim) { return round_up(head_dim, 32); }
// Words per quarter of a row, which a lane reads, for elements; bytes need half as many.
VQ_HD constexpr int quarter_words(int head_dim) { return query_span(head_dim) / 8; }
// Position of word `word` of a quarter of row `row` of operand words. With 128 channels quarters
// and rows start in different banks; other sizes have some conflicts, once per block.
VQ_HD constexpr int query_word(int quarter_words, int octet_words, int row, int quarter, int word) {
  return (row * 4 + quarter) * (quarter_words + octet_words) + word;
}

}  // namespace vq

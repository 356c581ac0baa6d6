// attention_decode in double precision, from the same codes and codebooks as the kernels: what
// their results are judged by. Slow and plain; each cached row is decoded once for all its queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

struct AttentionResult {
  std::vector<double> out;  // [data.query_rows()][query_heads][head_dim]
  std::vector<double> lse;  // [data.query_rows()][query_heads], natural log; -inf without a token
};

// out = softmax(softmax_scale * q~ k~^T) v over the tokens that a query token sees (VecInfer eq. 7,
// 10; Alg. 1), with raw keys, values and queries where token_place says so. Throws Error as
// RowDecoder does.
AttentionResult reference_attention(const AttentionData& data, double softmax_scale);

// The same over original_keys and original_values: what quantization is judged by. No codes are
// read. Throws Error(bad_input) where the originals were not kept.
AttentionResult reference_attention_unquantized(const AttentionData& data, double softmax_scale);

// Where a token of a sequence is read by a query token that sees `seen` tokens: from its codes,
// from slot `token` of the raw storage, from slot max_sinks + token % max_recent_tokens, or, behind
// the cache, from new_keys and new_values. A token that is both is a sink. Tokens of a group that
// is not full yet (group_tokens) are read from the window's slots, and those of a batch of which
// one is in the window (flush_block).
enum class TokenPlace { codes, sink, recent_tokens, fresh };
TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token,
                       std::int64_t seen);
// By the sequence's last query token: where others read a token from its codes, so does this one.
TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token);

// x H, where H[i][j] = (-1)^popcount(i & j) / sqrt(D), by its definition; D is a power of two.
std::vector<double> rotated(std::span<const double> x);

// q~ = q diag(lambda) H (VecInfer eq. 7), each factor only where the key format has it. query and
// result: [head_dim].
std::vector<double> transformed_query(const QuantizedTensor& keys, std::int64_t kv_head,
                                      std::span<const double> query);

}  // namespace vqgen

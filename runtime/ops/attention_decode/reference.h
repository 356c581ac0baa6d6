// attention_decode in double precision, from the same codes and codebooks as the kernels: what
// their results are judged by. Slow and plain; each cached row is decoded once for all its queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

struct AttentionResult {
  std::vector<double> out;  // [data.query_rows()][query_heads][head_dim]
  std::vector<double> lse;  // [data.query_rows()][query_heads], natural log; -inf without a token
};

// What a call leaves; of attention_merge rows are query rows.
struct AttentionOutput {
  std::vector<std::uint16_t> out;  // [data.query_rows()][query_heads][head_dim], bits of the dtype
  std::vector<float> lse;          // [data.query_rows()][query_heads]
};

// 1 / sqrt(head_dim), VecInfer eq. 1.
float softmax_scale(const AttentionDecode& op);

// How many times tolerance(dtype) a result may be off: twice where kernels round a query in the
// basis of the keys to elements.
inline double attention_tolerances(const AttentionDecode& op) { return has_basis(op.keys) ? 2 : 1; }

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

// Data of a validated problem. Scores q~.k~ / sqrt(head_dim) of a query spread over the tokens by
// about 2.5 (natural log units): a softmax neither uniform nor one-hot. (Where a pattern makes all
// keys equal, scores are about 2.5 in magnitude.) Windows and sinks a sequence are 0..max, both
// ends included where the batch allows, and may exceed the length; they are cut where the query
// tokens would ask for slots that have been overwritten. Lengths are cut so that the cache has room
// for fresh query tokens. Of a cache in pages some ragged sequences begin as the one before. Codes
// of tokens that are read raw by every sequence, or lie past every length, are random bits.
// Originals are not kept.
// Memory: the data and little else; about 0.3 GB of codes a second where they are uniform.
AttentionData make_attention_data(const AttentionDecode& problem, const HardInput& input);

}  // namespace vqgen

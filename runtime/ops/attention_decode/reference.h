// attention_decode in double precision, from the same codes and codebooks as the kernels, whose
// results it judges. It is slow and plain; each cached row is decoded once for all its queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

struct AttentionResult {
  std::vector<double> out;  // [data.query_rows()][query_heads][values.columns]
  std::vector<double> lse;  // [data.query_rows()][query_heads], natural log; -inf if none is seen
};

// The output of a call; for attention_merge, rows are query rows.
struct AttentionOutput {
  // [data.query_rows()][query_heads][values.columns], bits of the dtype
  std::vector<std::uint16_t> out;
  std::vector<float> lse;  // [data.query_rows()][query_heads]
};

// 1 / sqrt(head_dim), VecInfer eq. 1.
float softmax_scale(const AttentionDecode& op);

// How many times tolerance(dtype) a result may be off: twice where kernels round a query in the
// basis of the keys to elements.
inline double attention_tolerances(const AttentionDecode& op) { return has_basis(op.keys) ? 2 : 1; }

// out = softmax(softmax_scale * q~ k~^T) v over the tokens that a query token sees (VecInfer eq. 7,
// 10; Alg. 1), with raw keys, values and queries if token_place() says so; scores are bounded and
// the denominator has a sink logit if the data say so. Throws Error as RowDecoder does.
AttentionResult reference_attention(const AttentionData& data, double softmax_scale);

// Attention over original_keys and original_values, to judge quantization. It reads no codes.
// Throws Error(bad_input) if the originals were not kept.
AttentionResult reference_attention_unquantized(const AttentionData& data, double softmax_scale);

// Where a query token that sees `seen` tokens reads a token: codes, raw slot `token` (a sink, which
// wins), slot max_sinks + token % max_recent_tokens, or new_keys and new_values. Tokens of a group
// that is not full, or of a flush block with a recent token, are in the recent-token slots.
enum class TokenPlace { codes, sink, recent_tokens, fresh };
TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token,
                       std::int64_t seen);
// The place for the sequence's last query token. A token that any query token reads from its codes,
// this one reads from its codes too.
TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token);

// x H, by its definition: of a power of two D, H[i][j] = (-1)^popcount(i & j) / sqrt(D); of one
// times 12, 20 or 28, the Kronecker product of Paley's matrix of that order with such a one.
std::vector<double> rotated(std::span<const double> x);

// q~ = q diag(lambda) H (VecInfer eq. 7), each factor only if the key format has it. query and
// result: [head_dim].
std::vector<double> transformed_query(const QuantizedTensor& keys, std::int64_t kv_head,
                                      std::span<const double> query);

// Data of a validated problem, without originals. Scores of a query spread by about 2.5 (natural
// log units). Windows and sinks are 0..max but never reach overwritten slots; lengths leave room
// for fresh tokens. Codes that no sequence reads are random bits.
AttentionData make_attention_data(const AttentionDecode& problem, const HardInput& input);

}  // namespace vqgen

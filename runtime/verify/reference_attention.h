// attention_decode in double precision, from the same codes and codebooks as the kernels: what
// their results are judged by. Slow and plain; each cached row is decoded once for all its queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

struct AttentionResult {
  std::vector<double> out;  // [batch][query_heads][head_dim]
  std::vector<double> lse;  // [batch][query_heads], natural log; -inf for an empty sequence
};

// out = softmax(softmax_scale * q~ k~^T) v over tokens 0..length-1 (VecInfer eq. 7, 10; Alg. 1),
// with raw keys, values and queries where token_place says so. keys.batch == 1 with batch > 1 is
// one cache, raw slots included, that all sequences read. Throws Error as RowDecoder does.
AttentionResult reference_attention(const AttentionData& data, double softmax_scale);

// The same over original_keys and original_values: what quantization is judged by. No codes are
// read. Throws Error(bad_input) where the originals were not kept.
AttentionResult reference_attention_unquantized(const AttentionData& data, double softmax_scale);

// Where a token < length of a sequence is read: from its codes, from slot `token` of the raw
// storage, or from slot max_sinks + token % max_window. A token that is both is a sink.
enum class TokenPlace { codes, sink, window };
TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token);

// x H, where H[i][j] = (-1)^popcount(i & j) / sqrt(D), by its definition; D is a power of two.
std::vector<double> rotated(std::span<const double> x);

// q~ = q diag(lambda) H (VecInfer eq. 7), each factor only where the key format has it. query and
// result: [head_dim].
std::vector<double> transformed_query(const QuantizedTensor& keys, std::int64_t kv_head,
                                      std::span<const double> query);

}  // namespace vqgen

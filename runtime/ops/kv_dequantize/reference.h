// kv_dequantize judged in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// Keys and values of a sequence's tokens, [batch][kv_heads][rows][head_dim] of `Value`. Of the
// reference's, rows from a sequence's length on are zeros.
template <class Value>
struct Decoded {
  std::vector<Value> keys;
  std::vector<Value> values;
};
using DequantizeResult = Decoded<double>;
using DequantizeOutput = Decoded<std::uint16_t>;  // bits of the data's dtype

// What a row of an output is before a launch, and has to be after it where no token stands.
inline constexpr std::uint16_t kUnwritten = 0xffff;

// The cache of attention data as tensors of 16 bits say it: of tokens 0..length-1 sums of entries,
// keys with rotation and smoothing undone (k = k~ H diag(lambda), VecInfer eq. 3-6), or raw rows
// where token_place() says so. Queries mean nothing here. Throws Error as RowDecoder does.
DequantizeResult reference_dequantize(const AttentionData& data);

// What the codes were made of, in the same form; of data that has originals.
DequantizeResult reference_decode_unquantized(const AttentionData& data);

// Both outputs against the reference, tokens below the lengths alone; the larger error of the two.
// `why` says what is wrong, "" where ok: also that a row without a token was written.
struct DequantizeVerdict {
  Comparison comparison;
  std::string why;
};
DequantizeVerdict judge_dequantize(const AttentionData& data, const DequantizeResult& reference,
                                   const DequantizeOutput& output);

// What make_attention_data() makes for one query a KV head: the cache is the same.
AttentionData make_dequantize_data(const KvDequantize& problem, const HardInput& input);

}  // namespace vqgen

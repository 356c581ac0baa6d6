// Judges kv_dequantize in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// Keys and values, [batch][kv_heads][rows][columns] of `Value`. In the reference, rows from a
// sequence's length on are zeros.
template <class Value>
struct Decoded {
  std::vector<Value> keys;
  std::vector<Value> values;
};
using DequantizeResult = Decoded<double>;
using DequantizeOutput = Decoded<std::uint16_t>;  // bits of the data's dtype

// The contents of an output row before a launch; a row without a token must keep them.
inline constexpr std::uint16_t kUnwritten = 0xffff;

// The cache of attention data as 16-bit tensors: for tokens 0..length-1, sums of entries with
// rotation and smoothing undone (k = k~ H diag(lambda), VecInfer eq. 3-6), or raw rows if
// token_place() says so. Ignores queries. Throws Error as RowDecoder does.
DequantizeResult reference_dequantize(const AttentionData& data);

// The tensors that the codes were made from, in the same form; the data must have its originals.
DequantizeResult reference_decode_unquantized(const AttentionData& data);

// Compares both outputs with the reference for tokens below the lengths, and returns the larger
// error. `why` says what is wrong ("" if ok), also if a row without a token was written.
struct DequantizeVerdict {
  Comparison comparison;
  std::string why;
};
DequantizeVerdict judge_dequantize(const AttentionData& data, const DequantizeResult& reference,
                                   const DequantizeOutput& output);

// Data of make_attention_data() with one query per KV head: the cache is the same.
AttentionData make_dequantize_data(const KvDequantize& problem, const HardInput& input);

}  // namespace vqgen

// The argument struct of kv_dequantize, shared by host and device. Device pointers; nothing is
// owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct KvDequantizeArgs {
  static constexpr const char* kType = "KvDequantizeArgs";
  // [batch][kv_heads][tokens][channel], as attention compares them with a raw query; 16-byte
  // aligned. Rows of tokens from a sequence's length on are not written.
  u16* out_keys;
  u16* out_values;
  QuantizedArgs keys;       // rows [batch][kv_head][token]
  QuantizedArgs values;     // rows [batch][kv_head][token]
  const float* key_smooth;  // [kv_heads][head_dim]; null where the keys are not smoothed
  // Uncompressed tokens in the slots that attention_decode reads (args/attention_decode.h), 16-byte
  // aligned; null without window and sinks.
  const u16* raw_keys;
  const u16* raw_values;
  i64 raw_batch_stride;      // elements
  i64 raw_head_stride;       // elements
  const i32* lengths;        // [batch] tokens of a sequence
  const i32* recent_counts;  // [batch] as of attention_decode; null without a window
  const i32* sinks;          // [batch] first tokens stored raw, <= max_sinks; null without sinks
  i32 tokens;                // rows of a head of the outputs; tokens from there on are left out
  // The basis, as attention_decode has it.
  const float* key_mean;
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  // Raw rows in pages, as attention_decode has them.
  const i32* raw_table;
  i64 raw_table_columns;
  i64 raw_token_stride;  // elements
  // Of raw_values where their rows have another size than those of raw_keys; else not read, and
  // raw_values has the strides of raw_keys.
  i64 raw_value_batch_stride;  // elements
  i64 raw_value_head_stride;   // elements
  i64 raw_value_token_stride;  // elements
};

}  // namespace vq

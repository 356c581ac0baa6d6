// The argument struct of kv_append, shared by host and device. Device pointers; nothing is owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct KvAppendArgs {
  static constexpr const char* kType = "KvAppendArgs";
  const u16* new_keys;  // [batch][new_tokens][kv_heads][channel], raw (no transform applied)
  const u16* new_values;
  // [batch] token that the first new one becomes. Negative: nothing is appended to the sequence, as
  // for the padding of a batch. Tokens from `capacity` on are left out.
  const i32* positions;
  const i32* counts;        // [batch] new tokens that are real, 0..new_tokens; null: all
  EncodedArgs keys;         // rows [batch][kv_head][token]
  EncodedArgs values;       // rows [batch][kv_head][token]
  const float* key_smooth;  // [kv_heads][head_dim]; null where the keys are not smoothed
  // Uncompressed tokens in the slots that attention_decode reads (args/attention_decode.h); null
  // without window and sinks. With flush_block above 1 also read: tokens of a batch that the call
  // fills.
  u16* raw_keys;
  u16* raw_values;
  i64 raw_batch_stride;  // elements
  i64 raw_head_stride;   // elements
  i32 capacity;          // tokens that a sequence of the cache has room for
  i32 batch;             // sequences of the call
  // The basis, as attention_decode has it. new_keys and new_values then point into the workspace.
  const float* key_mean;
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  const u16* given_keys;
  const u16* given_values;
  // Raw rows in pages, as attention_decode has them: each new token's is written.
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

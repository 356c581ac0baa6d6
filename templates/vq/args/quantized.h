// One quantized tensor as a kernel argument. Pointers are device memory; the launcher owns nothing.
#pragma once

#include <vq/types.h>

namespace vq {

template <class Word>
struct TensorArgs {
  Word* codes;           // packed rows, layout/codes.h, which says their alignment
  const u16* codebooks;  // [unit][stage][entry][vector_size]; 16-byte aligned
  const float* scales;   // [unit][stage]; null without stage scales
  i64 batch_stride;      // words between sequences of a KV cache
  i64 head_stride;       // words between heads of a KV cache
  // In a paged cache (else 0): batch_stride is words between pages, below 2^30, and a sequence's
  // token t is in page pages[sequence x page_columns + t / page_tokens].
  i64 token_stride;  // words between tokens of a page, below 2^30 / page_tokens; between groups of
                     // rows (layout/codes.h) as many times that as a group has
  const i32* pages;  // [batch][page_columns]; read where a sequence has tokens
  i64 page_columns;
};
using QuantizedArgs = TensorArgs<const u32>;
using EncodedArgs = TensorArgs<u32>;  // whose codes are written

}  // namespace vq

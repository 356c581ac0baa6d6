// The argument struct of attention_merge, shared by host and device. Device pointers; nothing is
// owned.
#pragma once

#include <vq/types.h>

namespace vq {

inline constexpr int kMostParts = 8;

struct AttentionMergeArgs {
  static constexpr const char* kType = "AttentionMergeArgs";
  // [rows][heads][head_dim], 16-byte aligned, and [rows][heads]. Either may be a part's own; they
  // must not overlap the parts otherwise.
  u16* out;
  float* lse;
  // The problem's parts, shaped as out and lse. lse is the natural logarithm, as attention_decode
  // gives it; -inf means that the part has no token of the row, and its out is ignored.
  const u16* outs[kMostParts];
  const float* lses[kMostParts];
  i32 rows;  // query tokens of this call
};

}  // namespace vq

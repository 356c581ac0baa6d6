// The argument struct of attention_merge, shared by host and device. Device pointers; nothing is
// owned.
#pragma once

#include <vq/types.h>

namespace vq {

inline constexpr int kMostParts = 8;

struct AttentionMergeArgs {
  static constexpr const char* kType = "AttentionMergeArgs";
  // [rows][heads][head_dim], 16-byte aligned, and [rows][heads]. Each may be that of a part; they
  // overlap with no part otherwise.
  u16* out;
  float* lse;
  // The parts, as many as the problem has: likewise. lse in natural logarithm, as attention_decode
  // gives it; -inf: the part has no token of the row, and its out means nothing.
  const u16* outs[kMostParts];
  const float* lses[kMostParts];
  i32 rows;  // query tokens of this call
};

}  // namespace vq

// attention_merge in double precision, and the data that it is judged on.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/element.h"
#include "runtime/verify/reference_attention.h"

namespace vqgen {

// A result of attention over some of the tokens.
struct MergePart {
  std::vector<std::uint16_t> out;  // [rows][heads][head_dim], bits of the data's dtype
  std::vector<float> lse;          // [rows][heads], natural log; -inf where it has no token
};

struct MergeData {
  DType dtype = DType::f16;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::vector<MergePart> parts;
  int in_place = -1;  // the part whose memory takes the result; -1: the result's own
};

// out = sum w_i out_i / sum w_i with w_i = exp(lse_i - max lse), lse = log sum exp lse_i. A part
// whose lse is -inf is left out, whatever its out holds; all so give zeros and -inf. An lse that is
// NaN or +inf, and a NaN in the out of a part that counts, are NaN of that row and head.
AttentionResult reference_merge(const MergeData& data);

}  // namespace vqgen

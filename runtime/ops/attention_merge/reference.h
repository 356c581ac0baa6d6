// attention_merge in double precision, and the data that it is judged on.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/element.h"
#include "core/problem/problem.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// An attention result over some of the tokens.
struct MergePart {
  std::vector<std::uint16_t> out;  // [rows][heads][head_dim], bits of the data's dtype
  std::vector<float> lse;          // [rows][heads], natural log; -inf without a token
};

struct MergeData {
  DType dtype = DType::f16;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::vector<MergePart> parts;
  int in_place = -1;  // the part whose memory takes the result; -1: the result's own
};

// out = sum w_i out_i / sum w_i with w_i = exp(lse_i - max lse), lse = log sum exp lse_i. Parts
// with lse -inf are left out; if all are, the result is zeros and -inf. An lse of NaN or +inf, and
// a NaN in the out of a part that counts, make that row and head NaN.
AttentionResult reference_merge(const MergeData& data);

// full: all parts count in all rows, log-sum-exps are close, and the result is apart. ragged: they
// spread by up to hundreds or are equal, and some rows have empty parts with NaN and infinities;
// the result replaces a part, or is apart. input.codes has no meaning.
MergeData make_merge_data(const AttentionMerge& problem, const HardInput& input);

}  // namespace vqgen

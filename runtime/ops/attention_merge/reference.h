// attention_merge in double precision, and the data that it is judged on.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/element.h"
#include "core/problem/problem.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/hard_input.h"

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

// lengths full: all parts count in all rows, log-sum-exps are within a few of each other, and the
// result stands apart. ragged: log-sum-exps of a row spread by up to hundreds or are equal; in a
// third of the rows some parts are empty, in some all, with NaN and infinities in their out; the
// result stands in place of one of the parts, or apart. input.codes has no meaning here.
MergeData make_merge_data(const AttentionMerge& problem, const HardInput& input);

}  // namespace vqgen

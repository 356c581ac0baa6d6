// Inputs that find bugs: outlier channels, skewed and constant codes, ragged lengths, windows and
// sinks of every size, garbage wherever nothing may be read. One seed gives the same bytes on every
// machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/access/access_counts.h"
#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_tensor.h"
#include "runtime/verify/reference_merge.h"
#include "runtime/verify/reference_scalar.h"

namespace vqgen {

// full: problem.shape.tokens each. ragged: 0, 1 and full among them as far as the batch allows
// (one sequence: anything from 1 up), else random, half of it next to a multiple of 64.
enum class LengthPattern { full, ragged };
template <>
inline constexpr auto enum_names<LengthPattern> = std::array{"full", "ragged"};

struct HardInput {
  std::uint64_t seed = 1;
  CodePattern codes = CodePattern::uniform;
  LengthPattern lengths = LengthPattern::full;
  std::vector<std::int32_t> given_lengths = {};  // of each sequence, in place of a pattern's
  double skew = 1;                               // of CodePattern::zipf
  std::vector<AccessCounts> captured =
      {};  // of CodePattern::captured, as match_access_counts() has it
  // Query tokens of a sequence: query_tokens each, or 0, query_tokens and numbers between.
  LengthPattern counts = LengthPattern::full;
  bool fresh = false;  // their keys and values come with them, not in the cache
  std::optional<PageOrder> page_order = {};  // drawn where it is not given
  // Keys whose channels have scales get dead, biased and outlying ones (uneven_channels.h). Queries
  // are then as without them, so that scores may spread by hundreds.
  bool uneven = false;
  int active_experts = 0;  // that have rows, of lengths full; 0: as many as can have
};

// Data of a validated problem. Scores q~.k~ / sqrt(head_dim) of a query spread over the tokens by
// about 2.5 (natural log units): a softmax neither uniform nor one-hot. (Where a pattern makes all
// keys equal, scores are about 2.5 in magnitude.) Windows and sinks a sequence are 0..max, both
// ends included where the batch allows, and may exceed the length; they are cut where the query
// tokens would ask for slots that have been overwritten. Lengths are cut so that the cache has room
// for fresh query tokens. Of a cache in pages some ragged sequences begin as the one before. Codes
// of tokens that are read raw by every sequence, or lie past every length, are random bits.
// Originals are not kept.
// Memory: the data and little else; about 0.3 GB of codes a second where they are uniform.
AttentionData make_attention_data(const AttentionDecode& problem, const HardInput& input);

// The cache before the call holds random bits. lengths full: the last tokens of the cache; ragged:
// positions at 0, at the end, past it and negative, and counts from none to more than there are, as
// far as the batch allows. input.codes has no meaning here.
AppendData make_append_data(const KvAppend& problem, const HardInput& input);

// What make_attention_data() makes for one query a KV head: the cache is the same.
AttentionData make_dequantize_data(const KvDequantize& problem, const HardInput& input);

// lengths full: all parts count in all rows, log-sum-exps are within a few of each other, and the
// result stands apart. ragged: log-sum-exps of a row spread by up to hundreds or are equal; in a
// third of the rows some parts are empty, in some all, with NaN and infinities in their out; the
// result stands in place of one of the parts, or apart. input.codes has no meaning here.
MergeData make_merge_data(const AttentionMerge& problem, const HardInput& input);

// lengths full: elements uniform in [-1, 1]. ragged: channels of zeros, of one number, of tiny and
// of large ones, and of ties; NaN and infinities among them; given scales that clamp, codes that no
// quantizer writes. input.codes has no meaning here. Error(device) where the machine's memory does
// not hold a run.
ScalarData make_scalar_data(const ScalarMatrix& problem, const HardInput& input);

// y is of O(1) before output scales. input.lengths is of experts' rows alone. full: call_rows()
// dealt out evenly to the touched experts, which are drawn, as far as these may have them. ragged:
// none, one, the most and numbers between, no more than call_rows() together.
LinearData make_linear_data(const Linear& problem, const HardInput& input);

}  // namespace vqgen

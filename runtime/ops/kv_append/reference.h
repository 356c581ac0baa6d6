// kv_append judged in double precision: what its results have to be, and how near each code is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// The cache after a call, shaped as in AppendData.
struct AppendResult {
  std::vector<std::uint32_t> key_codes, value_codes;
  std::vector<std::uint16_t> raw_keys, raw_values;
};

// By how much more than the least distance a code may be away, of the size of what was encoded
// (AppendVerdict::excess). A kernel works in fp32: each of the up to 8 steps of the rotation rounds
// an element by up to 2^-24 of what the row holds, and distances to 8 elements round as often,
// which comes to 2^-20 where all of it adds up and to 2^-22 as a rule. Entries that lie nearer to
// each other than this are equally right.
inline constexpr double kAppendTolerance = 0x1p-18;
// The excess that is allowed: more where rows are brought into a basis, and rounded to elements.
double append_tolerance(const AppendData& data);

struct AppendVerdict {
  bool ok = true;
  std::string why;         // the first that is wrong, with its place
  double excess = 0;       // the most of any code: (its distance - the least) / (size + the least)
  std::int64_t codes = 0;  // that were judged
};

// Each code of an appended row against all entries, or lattice points, with the earlier stages as
// they were taken: size is the norm of the sub-vector before any stage, or where a rotation mixes
// all channels, of the row. Of a batch that leaves the window together all rows, with its last;
// they come from the ring where earlier calls appended them. Padding is zero, rows and raw slots
// that nothing is appended to are as they were, raw slots that it is hold the newest token. NaN
// never passes. Throws Error(bad_input) where sizes contradict each other.
AppendVerdict judge_append(const AppendData& data, const AppendResult& result);

// The cache before the call holds random bits. lengths full: the last tokens of the cache; ragged:
// positions at 0, at the end, past it and negative, and counts from none to more than there are, as
// far as the batch allows. input.codes has no meaning here.
AppendData make_append_data(const KvAppend& problem, const HardInput& input);

}  // namespace vqgen

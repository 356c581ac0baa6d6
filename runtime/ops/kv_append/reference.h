// Judges kv_append in double precision: what its results must be, and how near each code is.
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

// How much farther than the nearest entry a code may be, relative to the encoded vector's size
// (AppendVerdict::excess). fp32 rounding in 8 rotation steps and in distances to 8 elements adds up
// to 2^-20. Entries closer to each other than this are equally right.
inline constexpr double kAppendTolerance = 0x1p-18;
// The excess that is allowed: more where rows are brought into a basis, and rounded to elements.
double append_tolerance(const AppendData& data);

struct AppendVerdict {
  bool ok = true;
  std::string why;         // the first fault, with its place
  double excess = 0;       // largest (distance - least) / (size + least) of any code
  std::int64_t codes = 0;  // judged codes
};

// Judges each code of an appended row against all entries or lattice points, given its earlier
// stages, relative to the norm of the sub-vector (of the row, under a rotation). Padding must be
// zero, raw slots hold the newest token, all else be unchanged. NaN fails. Throws Error(bad_input).
AppendVerdict judge_append(const AppendData& data, const AppendResult& result);

// The cache before the call holds random bits. full: the last tokens of the cache. ragged:
// positions at 0, at the end, past it and negative, and counts from none to too many, as the batch
// allows. input.codes has no meaning.
AppendData make_append_data(const KvAppend& problem, const HardInput& input);

}  // namespace vqgen

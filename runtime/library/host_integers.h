// The host backend checks the integers of a launch, whose memory it can read, before a kernel uses
// them: lengths, windows, sinks, block tables, and rows of experts.
#pragma once

#include <vqgen/vqgen.h>

#include "core/problem/problem.h"
#include "runtime/backend/backend.h"

namespace vqgen::library {

// Returns VQGEN_OK, or VQGEN_BAD_INPUT with a line that names the integer or the array:
//
//   - arrays that are not wholly in the backend's memory (of a block table, the used rows);
//   - an entry of a block table that is not a page although the sequence has tokens there;
//   - an append's page that two sequences write, or that holds other tokens of its sequence;
//   - a negative length, or one above `tokens`, counting query tokens that bring their keys;
//   - windows and sinks that are negative, or reach slots that other tokens have;
//   - rows of query tokens that descend, or begin before the first;
//   - expert offsets that descend or leave the call's rows, and experts with too many rows.
vqgen_status judge_integers(const Backend& backend, const AttentionShape& shape,
                            const vqgen_attention_args& args);
vqgen_status judge_integers(const Backend& backend, const DequantizeShape& shape,
                            const vqgen_kv_dequantize_args& args);
vqgen_status judge_integers(const Backend& backend, const AppendShape& shape,
                            const vqgen_append_args& args);
vqgen_status judge_integers(const Backend& backend, const LinearShape& shape,
                            const vqgen_linear_args& args);

}  // namespace vqgen::library

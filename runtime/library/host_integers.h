// What the host backend finds in the integers of a launch, whose memory it can read, before a
// kernel goes by them: lengths, windows, sinks, block tables, and rows of experts.
#pragma once

#include <vqgen/vqgen.h>

#include "core/problem/problem.h"
#include "runtime/backend/backend.h"

namespace vqgen::library {

// VQGEN_OK, or VQGEN_BAD_INPUT with a line that names the integer, or the array:
//   - arrays that are not, or not whole, in the backend's memory; of a block table only the rows of
//     sequences that have tokens, as far as these go;
//   - an entry of a block table that is no page's where a sequence has tokens;
//   - of an append a page that two sequences write to, or one that holds other tokens of the
//     sequence that writes to it;
//   - a length that is negative, or of an attention more than `tokens` with the query tokens that
//     come with their keys;
//   - windows and sinks that are negative, or reach slots which other tokens have;
//   - rows of query tokens that descend, or begin before the first;
//   - of grouped products offsets that descend or leave the rows of the call, and an expert with
//     more rows than the config's.
vqgen_status judge_integers(const Backend& backend, const AttentionShape& shape,
                            const vqgen_attention_args& args);
vqgen_status judge_integers(const Backend& backend, const DequantizeShape& shape,
                            const vqgen_kv_dequantize_args& args);
vqgen_status judge_integers(const Backend& backend, const AppendShape& shape,
                            const vqgen_append_args& args);
vqgen_status judge_integers(const Backend& backend, const LinearShape& shape,
                            const vqgen_linear_args& args);

}  // namespace vqgen::library

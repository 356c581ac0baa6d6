// What the host backend finds in the tables of a launch, whose memory it can read, before a kernel
// goes by them.
#pragma once

#include <vqgen/vqgen.h>

#include "core/problem/problem.h"

namespace vqgen::library {

// VQGEN_OK, or VQGEN_BAD_INPUT with a line that names the entry of the table: one that is no page's
// where a sequence has tokens, or, of an append, a page that two sequences write to. Of an
// attention also a length beyond `tokens`.
vqgen_status judge_tables(const AttentionShape& shape, const vqgen_attention_args& args);
vqgen_status judge_tables(const DecodeShape& shape, const vqgen_kv_decode_args& args);
vqgen_status judge_tables(const AppendShape& shape, const vqgen_append_args& args);

}  // namespace vqgen::library

// A bundle: quantized tensors with all that running and checking them needs, in one safetensors
// file. The metadata key "vqgen.bundle" holds JSON (schema version, items, formats, sizes); tensors
// are named after their item:
//
//   <item>.keys.codes         U32  [batch, kv_heads, tokens, row words], or in groups of R rows and
//                             runs of W words [.., tokens / R, row words / W, R, W], rounded up
//   <item>.keys.codebooks     F16 or BF16 [units, num_codebooks, entries, vector_size]
//                             of rows in parts [elements]: these of part 0, then of part 1, ..
//   <item>.keys.projections   F32  [num_codebooks, vector_size, vector_size], optional; the reader
//                             multiplies them into the entries
//   <item>.keys.stage_scales  F32  [units, num_codebooks], where the format has them; of rows in
//                             parts [elements], as the codebooks
//   <item>.keys.smooth        F32  [kv_heads, head_dim], where the format smooths
//   <item>.keys.gain          F32  [units], optional; the reader multiplies it into the entries, or
//                             the stage scales. Codes are those of entries without it
//   <item>.keys.mean          F32  [kv_heads, head_dim], where the format has center
//   <item>.keys.rotation      F32  [kv_heads, head_dim, head_dim], where the format has klt
//   <item>.keys.original      F16 or BF16 [batch, kv_heads, tokens, head_dim], optional; of values
//                             value_head_dim takes the place of head_dim
//   <item>.values.*           the same
//   <item>.queries            [n, query_heads, head_dim], with .lengths I32 [n], optional; batch is
//                             n, or 1: each of n sequences has this cache
//   <item>.recent_counts, .sinks  I32 [n], optional, with .raw_keys and .raw_values
//                             [batch, kv_heads, max_sinks + max_recent_tokens, head_dim]
//   <item>.weights.codes      U32  [1, 1, out_features, row words]; .codebooks, .stage_scales as
//                             above
//   <item>.weights.output_scales  F32 [out_features], where the format has them
//   <item>.weights.original   [out_features, in_features], optional
//   <item>.x                  [n, in_features], optional
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "quantizer/safetensors.h"

namespace vqgen {

struct BundleItem {
  std::string name;
  std::variant<AttentionData, LinearData> data;
};

struct Bundle {
  std::vector<BundleItem> items;
};

// Deterministic: the same bundle gives the same bytes. Error(bad_input) on duplicate item names.
std::vector<std::byte> serialize_bundle(const Bundle& bundle);
// write_bundle() to a file, published by rename.
void write_bundle(const std::filesystem::path& path, const Bundle& bundle);

// Checks every shape, size, unit count, length and number against the formats; what it returns can
// be handed to a kernel. Error(bad_input) names file, tensor or JSON path, problem and remedy.
Bundle read_bundle(const std::filesystem::path& path);
Bundle read_bundle(const SafetensorsFile& file);

}  // namespace vqgen

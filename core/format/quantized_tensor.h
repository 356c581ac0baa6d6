// A quantized tensor in host memory, as bundles store it and kernels read it. Owned, plain.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/format/element.h"
#include "core/format/vq_format.h"

namespace vqgen {

// Rows: KV cache [batch][kv_heads][tokens] of a head's channels; weights [1][1][out_features] of
// in_features elements, or [1][experts][out_features]. Orders of codes, codebooks and units:
// templates/vq/layout/.
struct QuantizedTensor {
  VqFormat format;
  DType dtype = DType::f16;  // type of the codebook entries
  std::int64_t batch = 1;    // sequences stored (1 where all share one cache)
  std::int64_t heads = 1;
  std::int64_t rows = 0;                 // tokens or output features
  std::int64_t columns = 0;              // head_dim or input features
  std::int64_t row_words = 0;            // 32-bit words a packed row, without padding
  std::int64_t units = 0;                // codebook sets
  std::vector<std::uint32_t> codes;      // [batch][heads][head_words()], of rows by format.layout
  std::vector<std::uint16_t> codebooks;  // [units][num_codebooks][entries][vector_size], bits
  // [units][num_codebooks], part after part as the codebooks; empty unless format.stage_scales.
  std::vector<float> stage_scales;
  std::vector<float> output_scales;  // [heads][rows]; empty unless format.output_scales
  std::vector<float> smooth;         // [heads][columns]; empty unless format.smooth
  // [units], or empty: by which entries, or stage scales, are longer where codes are read. Codes
  // are those of entries without it; take_gain() multiplies it in.
  std::vector<float> gain;
  std::vector<float> mean;        // [heads][columns]; empty unless format.center
  std::vector<float> rotation;    // [heads][columns][columns]; empty unless format.klt
  std::int64_t expert_units = 0;  // codebook sets of each head, of weights of experts; else 0

  // Words of the rows of one head.
  std::int64_t head_words() const { return stored_words(format.layout, rows, row_words); }
};

// Order of the rows in a page of a paged cache. H: heads, N: tokens, D: words of a row.
enum class PageOrder {
  hnd,           // keys and values apart, [page][head][token][word]
  nhd,           // keys and values apart, [page][token][head][word]
  joint,         // one tensor, [page][keys, values][head][token][word]
  side_by_side,  // one tensor, [page][head][token][words of the key, words of the value]
};

// Slots of raw rows in host memory: of the first tokens, and of a ring of the newest, which with
// pages has one for each token that a sequence has room for.
struct RawSlots {
  std::int64_t sinks, ring;
  std::int64_t count() const { return sinks + ring; }
  std::int64_t recent(std::int64_t token) const { return sinks + token % ring; }
};
template <class Data>
RawSlots slots_in(const Data& data) {
  return {data.max_sinks, data.raw_page_tokens > 0 ? data.keys.rows : data.max_recent_tokens};
}

// Data of one attention_decode call. Element tensors are bits of `dtype`. keys.batch is
// batch; in a bundle it may be 1, and each sequence has this cache.
struct AttentionData {
  DType dtype = DType::f16;
  QuantizedTensor keys, values;
  std::int64_t batch = 0, query_heads = 0;
  std::vector<std::uint16_t> queries;  // [query_rows()][query_heads][head_dim]
  // [batch + 1], from 0 on: rows query_start[b] .. query_start[b + 1] - 1 are the query tokens of
  // sequence b. Empty: row b.
  std::vector<std::int32_t> query_start;
  // Keys and values of the query tokens, [query_rows()][kv_heads][columns], which `lengths` does
  // not count; empty if the cache has them.
  std::vector<std::uint16_t> new_keys, new_values;
  std::vector<std::int32_t> lengths;               // [batch], each 0..keys.rows
  std::vector<std::int32_t> recent_counts, sinks;  // [batch] each; empty: none
  int max_recent_tokens = 0, flush_block = 1, max_sinks = 0;
  int raw_page_tokens = 0;                      // 0: slots
  int sliding_window = 0, attention_chunk = 0;  // 0: query tokens see all before them
  bool shared_prefix = false;                   // all query tokens see all of a sequence
  double logit_softcap = 0;                     // 0: none
  std::vector<float> sink_logits;               // [query_heads]; empty: none
  // [query_rows()], in a tree of drafts: bit j of a row is draft j of its sequence. Else empty.
  std::vector<std::int64_t> tree_masks;
  std::vector<std::uint16_t> raw_keys;  // [keys.batch][kv_heads][slots][columns], see args
  std::vector<std::uint16_t> raw_values;
  // The tensors before quantization, [keys.batch][kv_heads][tokens][columns]; empty if not kept.
  std::vector<std::uint16_t> original_keys, original_values;
  // For a paged problem: seed for the pages' places, and for their order if none is given.
  std::uint64_t paging_seed = 0;
  std::optional<PageOrder> page_order = {};

  RawSlots raw_slots() const { return slots_in(*this); }

  // The first query token of a sequence and the one behind its last.
  std::pair<std::int64_t, std::int64_t> query_rows(std::int64_t sequence) const {
    if (query_start.empty()) return {sequence, sequence + 1};
    const auto b = static_cast<std::size_t>(sequence);
    return {query_start[b], query_start[b + 1]};
  }
  std::int64_t query_rows() const { return query_start.empty() ? batch : query_start.back(); }
  // Tokens that a sequence's query token sees, which is one of query_rows(sequence); may be none or
  // fewer.
  std::int64_t seen_by(std::int64_t sequence, std::int64_t row) const {
    if (shared_prefix) return lengths[static_cast<std::size_t>(sequence)];
    const auto [first, last] = query_rows(sequence);
    return lengths[static_cast<std::size_t>(sequence)] + row + 1 -
           (new_keys.empty() ? last : first);
  }
  // The first token that a query token sees which sees the tokens before `seen`, its own the last.
  std::int64_t first_seen(std::int64_t seen) const {
    if (sliding_window > 0) return std::max<std::int64_t>(0, seen - sliding_window);
    if (attention_chunk > 0 && seen > 0) return seen - 1 - (seen - 1) % attention_chunk;
    return 0;
  }
};

// Data of one kv_append call: the cache before it, and what is appended. Element tensors are bits
// of `dtype`; key_smooth is keys.smooth.
struct AppendData {
  DType dtype = DType::f16;
  QuantizedTensor keys, values;
  std::int64_t batch = 0, new_tokens = 0;
  std::vector<std::uint16_t> new_keys;  // [batch][new_tokens][kv_heads][columns]
  std::vector<std::uint16_t> new_values;
  std::vector<std::int32_t> positions;  // [batch]
  std::vector<std::int32_t> counts;     // [batch]; empty: new_tokens each
  int max_recent_tokens = 0, flush_block = 1, max_sinks = 0;
  int raw_page_tokens = 0;              // 0: slots
  std::vector<std::uint16_t> raw_keys;  // [batch][kv_heads][slots][columns], see args
  std::vector<std::uint16_t> raw_values;
  std::uint64_t paging_seed = 0;  // as in AttentionData
  std::optional<PageOrder> page_order = {};

  RawSlots raw_slots() const { return slots_in(*this); }
};

// Row counts of the experts to their first rows, [experts + 1].
inline std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& rows) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int32_t count : rows) offsets.push_back(offsets.back() + count);
  return offsets;
}

// Data of one gemv call. With experts, whose weights are the heads of one tensor, rows
// expert_rows[e] .. expert_rows[e + 1] - 1 are expert e's.
struct LinearData {
  DType dtype = DType::f16;
  QuantizedTensor weights;
  std::int64_t input_rows = 0;
  std::vector<std::int32_t> expert_rows = {};   // [experts + 1]; empty with one matrix
  std::vector<std::uint16_t> x;                 // [input_rows][in_features]
  std::vector<std::uint16_t> original_weights;  // [out_features][in_features]; empty if not kept
  std::int64_t gate_rows = 0;                   // 0: without a gate
  double multiplier = 1;
  std::vector<std::uint16_t> residual = {};  // [input_rows][columns of y]; empty if there is none
};

// Experts that have rows.
inline std::vector<std::size_t> experts_with_rows(const LinearData& data) {
  std::vector<std::size_t> experts;
  for (std::size_t e = 0; e + 1 < data.expert_rows.size(); ++e) {
    if (data.expert_rows[e] < data.expert_rows[e + 1]) experts.push_back(e);
  }
  return experts;
}

}  // namespace vqgen

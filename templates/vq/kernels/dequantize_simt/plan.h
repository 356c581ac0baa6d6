// Plan of cache dequantization: a lane makes 8 channels of one token, one store of 16 bytes.
#pragma once

#include <vq/layout/attention.h>

namespace vq {

struct DequantizeSimt {
  int threads = 256;
  int tokens_per_block = 64;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "DequantizeSimt";
  static constexpr const char* kName = "dequantize_simt";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = DequantizeSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 4096},
          "tokens of one sequence and head that a block decodes, keys or values");
    visit("key_codebook", &P::key_codebook, Range{}, Doc::kKeyCodebook);
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

// What a kernel knows of its problem; the launch sets batch and tokens. A block decodes up to
// tokens_per_block rows of one sequence, head and tensor, or of one of its parts. Grid: (blocks of
// tokens x (parts of the keys + parts of the values, or 2), kv_heads, batch).
struct DequantizeProblem {
  Element element;
  int head_dim;   // channels of keys
  int value_dim;  // of values
  int kv_heads;
  int max_recent_tokens;  // slots of the raw ring of newest tokens
  int flush_block;        // tokens that leave the window together
  int max_sinks;          // slots of raw first tokens
  int page_tokens;        // 0: a cache without pages
  int raw_page_tokens;    // 0: raw tokens in slots
  FormatConfig keys;      // in parts: the first
  FormatConfig values;    // in parts: the first
  Parts key_parts;
  Parts value_parts;
  Basis key_basis;
  Basis value_basis;

  static constexpr const char* kType = "DequantizeProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = DequantizeProblem;
    visit("element", &P::element);
    visit("head_dim", &P::head_dim);
    visit("value_dim", &P::value_dim);
    visit("kv_heads", &P::kv_heads);
    visit("max_recent_tokens", &P::max_recent_tokens);
    visit("flush_block", &P::flush_block);
    visit("max_sinks", &P::max_sinks);
    visit("page_tokens", &P::page_tokens);
    visit("raw_page_tokens", &P::raw_page_tokens);
    visit("keys", &P::keys);
    visit("values", &P::values);
    visit("key_parts", &P::key_parts);
    visit("value_parts", &P::value_parts);
    visit("key_basis", &P::key_basis);
    visit("value_basis", &P::value_basis);
  }
};

// Problem and plan side by side.
template <class Plan>
struct DequantizeConfig : DequantizeProblem, Plan {};

template <class Plan>
VQ_HD constexpr DequantizeConfig<Plan> configure(const DequantizeProblem& problem,
                                                 const Plan& plan) {
  DequantizeConfig<Plan> c{problem, plan};
  place_parts(c);
  c.keys.placement = c.key_codebook;
  c.values.placement = c.value_codebook;
  return c;
}

// Lanes per row, at 8 channels each, and rows that a block decodes at a time.
inline constexpr int kDecodedChannels = 8;
VQ_HD constexpr int row_lanes(int channels) { return channels / kDecodedChannels; }
VQ_HD constexpr int rows_at_once(const DequantizeConfig<DequantizeSimt>& c, int channels) {
  return c.threads / row_lanes(channels);
}

// Tokens whose codes a block stages at a time, in two buffers: 8 per warp, or 16 with 64 channels.
VQ_HD constexpr int step_tokens(const DequantizeConfig<DequantizeSimt>& c) {
  const int step = c.threads / 32 * (c.head_dim == 64 ? 16 : 8);
  return c.tokens_per_block < step ? c.tokens_per_block : step;
}

// Byte offsets into the shared memory of a block of keys or of values.
struct DequantizeSimtShared {
  CodebookShared book;
  i64 codes;    // [2 steps, or 1][tokens of a step][row words] u32
  i64 factors;  // [head_dim] fp32 by which channels are multiplied last, of rotated keys
  i64 total;
};

VQ_HD constexpr DequantizeSimtShared shared_layout(const DequantizeConfig<DequantizeSimt>& c,
                                                   const FormatConfig& f) {
  DequantizeSimtShared at{};
  Carver carve;
  const int channels = f.part.channels;
  at.book = carve_codebook(f, units_of(f, channels), carve);
  const int steps = c.tokens_per_block > step_tokens(c) ? 2 : 1;
  at.codes = carve(i64{steps} * step_tokens(c) * share_words(f, channels, channels) * 4);
  at.factors = carve(f.hadamard ? i64{c.head_dim} * 4 : i64{0});
  at.total = carve.next;
  return at;
}

// Adds the kernel that changes the basis.
VQ_HD constexpr void add_basis(CallShape& shape, const DequantizeProblem& c, i64 batch,
                               i64 tokens) {
  for_each_basis(c, [&](BasisOf of) {
    const bool values = of == BasisOf::kValues;
    const int dim = basis_dim(c, of);
    shape.add({values                 ? "dequantize_values_from_basis"
               : of == BasisOf::kKeys ? "dequantize_keys_from_basis"
                                      : "dequantize_from_basis",
               values ? "values_from_basis" : "from_basis",
               ceil_div(tokens, i64{kBasisTile}) * basis_operands(c, of), c.kv_heads, batch,
               basis_threads(dim), basis_shared(dim), true, false});
  });
}

VQ_HD constexpr CallShape call_shape(const DequantizeConfig<DequantizeSimt>& c, i64 batch,
                                     i64 tokens) {
  CallShape shape{};
  i64 bytes = 0;
  for_each_format(c, [&](const FormatConfig& f) {
    const i64 of_format = shared_layout(c, f).total;
    if (of_format > bytes) bytes = of_format;
  });
  const i64 blocks =
      (key_formats(c) + value_formats(c)) * ceil_div(tokens, i64{c.tokens_per_block});
  shape.add({"kv_dequantize_simt", "", blocks, c.kv_heads, batch, c.threads, bytes, true, true});
  shape.code_bytes = code_alignment(c.keys, c.values);
  shape.element_bytes = 2 * kDecodedChannels;
  return shape;
}

}  // namespace vq

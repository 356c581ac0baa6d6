// Problem: what is to be computed, total and without "auto". One aggregate an op; the variant makes
// it impossible that op and shape disagree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "core/format/element.h"
#include "core/format/vq_format.h"
#include "core/problem/head_rows.h"
#include "core/problem/linear.h"
#include "core/problem/merge.h"
#include "core/problem/weight_rows.h"

namespace vqgen {

inline constexpr const char* kPageTokensDoc =
    "tokens of a page: 16, 32, 64, 128 or 256; 0 where each sequence's rows follow each other";
inline constexpr const char* kRawPageTokensDoc =
    "tokens of a page of raw rows, which have a table of their own; a multiple of 8; 0 where each "
    "sequence has slots for its newest tokens";

// Query tokens of a sequence: in a chain; and in a tree, as bits of a mask, or of a shared prefix.
inline constexpr int kMostQueryTokens = 16;
inline constexpr int kMostTreeTokens = 64;

// Slots of the ring of newest tokens: twice the 1024 of VQKV (sec. 3.3), and room for drafts.
inline constexpr int kMostWindow = 4096;
inline constexpr const char* kFlushBlockDoc =
    "tokens that are encoded together and leave the window together, at most window; until then "
    "they are raw alone";

// Raw rows of a sequence in a head: slots, sinks first and then the window's ring, or in pages one
// for each token.
template <class Shape>
std::int64_t raw_slots_of(const Shape& shape) {
  return shape.raw_page_tokens > 0 ? shape.tokens : shape.sinks + shape.recent_tokens;
}

// The newest tokens of each sequence, usually one, against a quantized KV cache (VecInfer Alg. 1).
struct AttentionShape {
  int batch = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t tokens = 0;
  int recent_tokens = 0;
  int sinks = 0;
  int page_tokens = 0;
  int raw_page_tokens = 0;
  int query_tokens = 1;
  bool batch_invariant = false;
  int flush_block = 1;
  int sliding_window = 0;
  int attention_chunk = 0;
  double logit_softcap = 0;
  bool sink_logits = false;
  bool tree_mask = false;
  bool shared_prefix = false;
  int value_head_dim = 0;  // 0: head_dim

  int value_dim() const { return value_dim_of(*this); }

  static constexpr auto fields() {
    using S = AttentionShape;
    return std::make_tuple(
        field("batch", &S::batch, required(1, 65535), "sequences of a call"),
        field("query_heads", &S::query_heads, required(1, 65535), "heads of the query"),
        field("kv_heads", &S::kv_heads, required(1, 65535), "heads of the cache"),
        field("head_dim", &S::head_dim, required(1, 1024), kHeadDimDoc),
        field("value_head_dim", &S::value_head_dim, silent_in(1, 1024), kValueHeadDimDoc),
        field("tokens", &S::tokens, required(1, 2147483647 - 1024),
              "tokens of the longest sequence"),
        field("recent_tokens", &S::recent_tokens, optional_in(0, kMostWindow),
              "newest tokens kept raw, at most"),
        field("flush_block", &S::flush_block, silent_in(1, kMostWindow), kFlushBlockDoc),
        field("sinks", &S::sinks, optional_in(0, 64), "first tokens kept raw, at most"),
        field("page_tokens", &S::page_tokens, silent_in(0, 256), kPageTokensDoc),
        field("raw_page_tokens", &S::raw_page_tokens, silent_in(0, 256), kRawPageTokensDoc),
        field("query_tokens", &S::query_tokens, silent_in(1, kMostTreeTokens),
              "query tokens of a sequence, at most 16, with tree_mask or shared_prefix 64; each "
              "sees the tokens up to its own"),
        field("batch_invariant", &S::batch_invariant, silent(),
              "no bit of a result depends on other sequences or on other query tokens"),
        field("sliding_window", &S::sliding_window, silent_in(1, 2147483647),
              "newest tokens that a query token sees, its own among them; all without the field"),
        field("attention_chunk", &S::attention_chunk, silent_in(1, 2147483647),
              "tokens of a chunk: a query token sees those of its own chunk (Llama 4)"),
        field("logit_softcap", &S::logit_softcap, silent_in(0.01, 1000),
              "c: a score s counts as c tanh(s / c) (Gemma 2)"),
        field("sink_logits", &S::sink_logits, silent(),
              "true: an argument has a logit per query head, which adds to the denominator alone "
              "(GPT-OSS)"),
        field("tree_mask", &S::tree_mask, silent(),
              "true: an argument has 64 bits per query token, the draft tokens that it sees"),
        field("shared_prefix", &S::shared_prefix, silent(),
              "true: all query tokens see all tokens, a prefix that sequences share"));
  }
  bool operator==(const AttentionShape&) const = default;
};

struct AttentionDecode {
  static constexpr const char* kOp = "attention_decode";
  DType dtype = DType::f16;
  AttentionShape shape;
  VqFormat keys;
  VqFormat values;
  int group() const { return shape.query_heads / shape.kv_heads; }
  std::int64_t raw_slots() const { return raw_slots_of(shape); }
  // Tokens of a sequence that splits share, at most: those that its query tokens see. With
  // batch-invariant results splits are fixed, whatever is seen.
  std::int64_t split_tokens() const {
    const std::int64_t seen = shape.sliding_window + shape.attention_chunk;
    if (seen == 0 || shape.batch_invariant) return shape.tokens;
    return std::min(shape.tokens, seen + shape.query_tokens - 1);
  }
  bool operator==(const AttentionDecode&) const = default;
};

// What is wrong with what query tokens of a shape see, and the field that has it.
std::optional<FormatFault> mask_fault(const AttentionShape& shape);

// Tokens that a cache of these formats keeps raw at least, in the window's ring: a group that is
// not full yet.
inline int least_window(const VqFormat& keys, const VqFormat& values) {
  return std::max(keys.group_tokens, values.group_tokens);
}

// Newest tokens that a reader may ask for raw, at most: it gets up to a batch less one more, as
// tokens leave the window by whole batches.
template <class Shape>
int most_raw(const Shape& shape) {
  return shape.recent_tokens - (shape.flush_block - 1);
}

// New tokens of sequences, encoded and written to the rows of a quantized KV cache.
struct AppendShape {
  int batch = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t tokens = 0;
  int new_tokens = 1;
  int recent_tokens = 0;
  int sinks = 0;
  int page_tokens = 0;
  int raw_page_tokens = 0;
  int flush_block = 1;
  int value_head_dim = 0;  // 0: head_dim

  int value_dim() const { return value_dim_of(*this); }

  static constexpr auto fields() {
    using S = AppendShape;
    return std::make_tuple(
        field("batch", &S::batch, required(1, 65535), "sequences of a call"),
        field("kv_heads", &S::kv_heads, required(1, 65535), "heads of the cache"),
        field("head_dim", &S::head_dim, required(1, 1024), kHeadDimDoc),
        field("value_head_dim", &S::value_head_dim, silent_in(1, 1024), kValueHeadDimDoc),
        field("tokens", &S::tokens, required(1, 2147483647 - 1024),
              "tokens that a sequence has room for"),
        field("new_tokens", &S::new_tokens, optional_in(1, 65536),
              "tokens that one call appends to a sequence, at most"),
        field("recent_tokens", &S::recent_tokens, optional_in(0, kMostWindow),
              "newest tokens kept raw too, at most"),
        field("flush_block", &S::flush_block, silent_in(1, kMostWindow), kFlushBlockDoc),
        field("sinks", &S::sinks, optional_in(0, 64), "first tokens kept raw too, at most"),
        field("page_tokens", &S::page_tokens, silent_in(0, 256), kPageTokensDoc),
        field("raw_page_tokens", &S::raw_page_tokens, silent_in(0, 256), kRawPageTokensDoc));
  }
  bool operator==(const AppendShape&) const = default;
};

// Writes what attention_decode reads: the same formats, rows and raw slots.
struct KvAppend {
  static constexpr const char* kOp = "kv_append";
  DType dtype = DType::f16;
  AppendShape shape;
  VqFormat keys;
  VqFormat values;
  std::int64_t raw_slots() const { return raw_slots_of(shape); }
  bool operator==(const KvAppend&) const = default;
};

// The rows of a quantized KV cache as dense tensors.
struct DequantizeShape {
  int batch = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t tokens = 0;
  int recent_tokens = 0;
  int sinks = 0;
  int page_tokens = 0;
  int raw_page_tokens = 0;
  int flush_block = 1;
  int value_head_dim = 0;  // 0: head_dim

  int value_dim() const { return value_dim_of(*this); }

  static constexpr auto fields() {
    using S = DequantizeShape;
    return std::make_tuple(
        field("batch", &S::batch, required(1, 65535), "sequences of a call"),
        field("kv_heads", &S::kv_heads, required(1, 65535), "heads of the cache"),
        field("head_dim", &S::head_dim, required(1, 1024), kHeadDimDoc),
        field("value_head_dim", &S::value_head_dim, silent_in(1, 1024), kValueHeadDimDoc),
        field("tokens", &S::tokens, required(1, 2147483647 - 8192),
              "tokens of the longest sequence; rows of a head of the outputs"),
        field("recent_tokens", &S::recent_tokens, optional_in(0, kMostWindow),
              "newest tokens kept raw, at most"),
        field("flush_block", &S::flush_block, silent_in(1, kMostWindow), kFlushBlockDoc),
        field("sinks", &S::sinks, optional_in(0, 64), "first tokens kept raw, at most"),
        field("page_tokens", &S::page_tokens, silent_in(0, 256), kPageTokensDoc),
        field("raw_page_tokens", &S::raw_page_tokens, silent_in(0, 256), kRawPageTokensDoc));
  }
  bool operator==(const DequantizeShape&) const = default;
};

// Turns what attention_decode reads into dense keys and values for any attention.
struct KvDequantize {
  static constexpr const char* kOp = "kv_dequantize";
  DType dtype = DType::f16;
  DequantizeShape shape;
  VqFormat keys;
  VqFormat values;
  std::int64_t raw_slots() const { return raw_slots_of(shape); }
  bool operator==(const KvDequantize&) const = default;
};

// Bytes of the dense rows that a call writes.
inline double dense_bytes(const KvDequantize& op) {
  return 2.0 * op.shape.batch * op.shape.kv_heads * (op.shape.head_dim + op.shape.value_dim()) *
         static_cast<double>(op.shape.tokens);
}

// A matrix's scales: an argument, or computed from its elements.
enum class Scales { given, computed };
template <>
inline constexpr auto enum_names<Scales> = std::array{"given", "computed"};

struct ScalarShape {
  std::int64_t tokens = 0;
  int channels = 0;
  Scales scales = Scales::given;

  static constexpr auto fields() {
    using S = ScalarShape;
    return std::make_tuple(
        field("tokens", &S::tokens, required(1, 2147483647), "rows of the matrix, at most"),
        field("channels", &S::channels, required(1, 1 << 24), "columns of the matrix"),
        field("scales", &S::scales, Rule{},
              "given: an argument; computed: made of the matrix, of int8_quantize alone"));
  }
  bool operator==(const ScalarShape&) const = default;
};

// A matrix [tokens][channels] of numbers to or from int8 with an fp32 scale for each channel, as
// keys are in "GPU-Accelerated INT8 Quantization for KV Cache Compression in Large Language Models"
// (2025), eq. 6 to 8. What the two directions have in common; an op without operands.
struct ScalarMatrix {
  vq::Real dtype = vq::Real::f16;
  ScalarShape shape;
  bool decodes = false;
  int element_bytes() const { return dtype == vq::Real::f32 ? 4 : 2; }
  double elements() const { return static_cast<double>(shape.tokens) * shape.channels; }
  // Bytes that a call moves; computing scales reads the elements once more.
  double bytes() const {
    const int reads = shape.scales == Scales::computed ? 2 : 1;
    return elements() * (1.0 + reads * element_bytes()) + 4.0 * shape.channels;
  }
  bool operator==(const ScalarMatrix&) const = default;
};

struct Int8Quantize : ScalarMatrix {
  static constexpr const char* kOp = "int8_quantize";
  bool operator==(const Int8Quantize&) const = default;
};

struct Int8Dequantize : ScalarMatrix {
  static constexpr const char* kOp = "int8_dequantize";
  explicit Int8Dequantize(const ScalarMatrix& matrix = {}) : ScalarMatrix(matrix) {
    decodes = true;
  }
  bool operator==(const Int8Dequantize&) const = default;
};

using Problem = std::variant<AttentionDecode, Gemv, Gemm, KvAppend, KvDequantize, AttentionMerge,
                             Int8Quantize, Int8Dequantize, WeightDequantize>;

// visit(operand, its format) for each quantized tensor of an op, which may have none.
template <class Op, class Visit>
void for_each_operand(Op& op, Visit&& visit) {
  if constexpr (requires { op.weights; }) {
    visit(Operand::weights, op.weights);
  } else if constexpr (requires { op.keys; }) {
    visit(Operand::keys, op.keys);
    visit(Operand::values, op.values);
  }
}

// The product of a problem, null where it is another op.
const Linear* as_linear(const Problem& problem);
// The matrix of int8_quantize or int8_dequantize; null for other ops.
const ScalarMatrix* as_scalar(const Problem& problem);

// Checks that table-decoded formats are complete and fit the tensors that they describe. Throws
// Error(bad_input) that names `where` ("config.json: /keys") and the remedy.
void validate(const Problem& problem, const std::string& where);

std::string op_name(const Problem& problem);

// Codebook sets that serve one tensor, in the order of templates/vq/layout/format.h; keys in parts
// count all parts'.
std::int64_t kv_units(const VqFormat& format, int kv_heads, int head_dim);
// 16-bit elements of the codebooks of keys or values.
std::int64_t kv_codebook_elements(const VqFormat& format, int kv_heads, int head_dim);
// Their codebooks: residual stages of all units, each of which may have a stage scale.
std::int64_t kv_stages(const VqFormat& format, int kv_heads, int head_dim);
std::int64_t weight_units(const VqFormat& format, std::int64_t out_features,
                          std::int64_t in_features);
// Codebook sets of all experts.
std::int64_t weight_units(const Linear& op);

}  // namespace vqgen

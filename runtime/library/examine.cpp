#include "runtime/library/examine.h"

#include <vq/layout/codes.h>

#include <limits>
#include <utility>

namespace vqgen::library {
namespace {

// Rows of codes in a page.
struct PagedRows {
  std::int64_t bytes;  // of a row, with its padding
  int in_group;        // rows
};

// Judges the page strides of keys or values. Kernels count bytes within and between pages in 32
// bits. Groups of contiguous rows have no gap between them, so no access needs more alignment than
// a group's size keeps; the rows of a group are within it.
void examine_strides(FirstFault& fault, const char* const (&names)[3],
                     const vqgen_page_strides& strides, std::int64_t kv_heads, int page_tokens,
                     const Demands& demands, const PagedRows& rows, const vqgen_pages& pages) {
  constexpr std::int64_t kMost = std::int64_t{4} << 30;  // bytes
  const std::int64_t group = rows.bytes * rows.in_group;
  const auto kept = static_cast<std::uintptr_t>((group & -group) - 1);
  const auto one = [&](const char* name, std::int64_t stride, std::int64_t least, std::int64_t most,
                       bool counts, int times = 1) {
    fault.stride(name, stride, demands.codes_mask & kept, times);
    fault.stride(name, stride, kWordAlignment - 1, 1);
    fault.require(!counts || stride >= least, VQGEN_BAD_INPUT,
                  "a stride of pages is less than the rows of codes that it spans; give those of "
                  "the memory, in bytes");
    fault.require(stride < most, VQGEN_BAD_INPUT,
                  "a stride of pages is more than kernels count to, 4 GiB between pages and within "
                  "one");
  };
  one(names[0], strides.page, group, kMost, pages.count > 1);
  one(names[1], strides.head, group, kMost, kv_heads > 1);
  one(names[2], strides.token, rows.bytes, kMost / page_tokens, true, rows.in_group);
}

PagedRows rows_of(const VqFormat& format, std::int64_t head_dim) {
  const std::int64_t words = format.row_words(head_dim);
  return {4 * vq::padded_words(format.layout, words), format.layout.rows};
}

template <class Op, class Args>
void examine_pages(FirstFault& fault, const Op& op, const Demands& demands, const Args& args) {
  const auto& [kv_heads, page_tokens] = std::tuple(op.shape.kv_heads, op.shape.page_tokens);
  const vqgen_pages& pages = args.pages;
  fault.require(pages.count >= 1 && pages.count <= std::numeric_limits<std::int32_t>::max(),
                VQGEN_BAD_INPUT, "pages.count is not 1 to 2^31 - 1; give the pages of the pool");
  fault.require(
      pages.columns >= 0 && pages.columns <= std::numeric_limits<std::int32_t>::max() &&
          pages.columns * page_tokens >= args.tokens,
      VQGEN_BAD_INPUT,
      "pages.columns times page_tokens is less than `tokens`; give a wider block table, or "
      "fewer tokens");
  fault.require(args.keys.batch_stride == 0 && args.keys.head_stride == 0 &&
                    args.values.batch_stride == 0 && args.values.head_stride == 0,
                VQGEN_BAD_INPUT,
                "batch_stride and head_stride are of a cache without pages; leave them 0, and give "
                "the strides in `pages`");
  examine_strides(fault, {"pages.keys.page", "pages.keys.head", "pages.keys.token"}, pages.keys,
                  kv_heads, page_tokens, demands, rows_of(op.keys, op.shape.head_dim), pages);
  examine_strides(fault, {"pages.values.page", "pages.values.head", "pages.values.token"},
                  pages.values, kv_heads, page_tokens, demands,
                  rows_of(op.values, op.shape.value_dim()), pages);
}

template <class Shape, class Args>
void examine_raw_pages(FirstFault& fault, const Shape& shape, const Demands& demands,
                       const Args& args) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const vqgen_raw_pages& pages = args.raw_pages;
  fault.require(pages.count >= 1 && pages.count <= kMost, VQGEN_BAD_INPUT,
                "raw_pages.count is not 1 to 2^31 - 1; give the pages of the pool");
  fault.require(pages.columns >= 0 && pages.columns <= kMost &&
                    pages.columns * shape.raw_page_tokens >= args.tokens,
                VQGEN_BAD_INPUT,
                "raw_pages.columns times raw_page_tokens is less than `tokens`; give a wider block "
                "table, or fewer tokens");
  fault.stride("raw_pages.token_stride", pages.token_stride, demands.elements_mask, 2);
  fault.require(pages.token_stride >= shape.head_dim && pages.token_stride <= kMost,
                VQGEN_BAD_INPUT,
                "raw_pages.token_stride is less than head_dim, or more than 2^31 - 1; give that of "
                "the memory, in elements");
}

// The strides of raw values whose rows have another size than those of keys.
template <class Shape, class Args>
void examine_raw_values(FirstFault& fault, const Shape& shape, const Demands& demands,
                        const Args& args, bool raw) {
  const vqgen_raw_value_strides& strides = args.raw_value_strides;
  if (!raw || shape.value_dim() == shape.head_dim) {
    fault.require(strides.batch == 0 && strides.head == 0 && strides.token == 0, VQGEN_BAD_INPUT,
                  "raw_value_strides is given, and there are no raw values of another size than "
                  "keys; leave it zero");
    return;
  }
  const bool paged = shape.raw_page_tokens > 0;
  fault.stride("raw_value_strides.batch", strides.batch, demands.elements_mask, 2);
  fault.stride("raw_value_strides.head", strides.head, demands.elements_mask, 2);
  fault.apart("raw_value_strides.batch", strides.batch, paged ? args.raw_pages.count : shape.batch);
  fault.apart("raw_value_strides.head", strides.head, shape.kv_heads);
  fault.require(
      paged || strides.token == 0, VQGEN_BAD_INPUT,
      "raw_value_strides.token is given, and raw tokens are in slots, row by row; leave it "
      "zero");
  if (!paged) return;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  fault.stride("raw_value_strides.token", strides.token, demands.elements_mask, 2);
  fault.require(strides.token >= shape.value_dim() && strides.token <= kMost, VQGEN_BAD_INPUT,
                "raw_value_strides.token is less than value_head_dim, or more than 2^31 - 1; give "
                "that of the memory, in elements");
}

// The strides of the cache that one op reads and another appends to.
template <class Op, class Args>
void examine_cache(FirstFault& fault, const Op& op, const Demands& demands, const Args& args) {
  const auto& shape = op.shape;
  const bool raw = op.raw_slots() > 0;
  if (raw) {
    fault.stride("raw_batch_stride", args.raw_batch_stride, demands.elements_mask, 2);
    fault.stride("raw_head_stride", args.raw_head_stride, demands.elements_mask, 2);
  }
  examine_raw_values(fault, shape, demands, args, raw);
  if (shape.raw_page_tokens > 0) examine_raw_pages(fault, shape, demands, args);
  if (shape.page_tokens > 0) {
    examine_pages(fault, op, demands, args);
  } else {
    fault.apart("keys.batch_stride", args.keys.batch_stride, shape.batch);
    fault.apart("keys.head_stride", args.keys.head_stride, shape.kv_heads);
    fault.apart("values.batch_stride", args.values.batch_stride, shape.batch);
    fault.apart("values.head_stride", args.values.head_stride, shape.kv_heads);
  }
  fault.apart("raw_batch_stride", args.raw_batch_stride,
              shape.raw_page_tokens > 0 ? args.raw_pages.count : shape.batch, raw);
  fault.apart("raw_head_stride", args.raw_head_stride, shape.kv_heads, raw);
}

struct Stride {
  std::int64_t stride, count;
};

// Two strides that are written, `span` of their units each time, must reach no place twice.
void examine_written(FirstFault& fault, Stride a, Stride b, std::int64_t span, const char* line) {
  if (a.count > 1 && (b.count <= 1 || a.stride > b.stride)) std::swap(a, b);
  if (a.count > 1) {
    fault.require(a.stride >= span, VQGEN_BAD_INPUT, line);
    fault.require((b.stride - span) / (a.count - 1) >= a.stride, VQGEN_BAD_INPUT, line);
  } else if (b.count > 1) {
    fault.require(b.stride >= span, VQGEN_BAD_INPUT, line);
  }
}

// Sequences and heads of an append's cache must not overlap: they would overwrite each other.
void examine_written_cache(FirstFault& fault, const KvAppend& op, const vqgen_append_args& args) {
  const AppendShape& shape = op.shape;
  const auto span = [&](const PagedRows& rows) {
    return (args.tokens + rows.in_group - 1) / rows.in_group * rows.in_group * (rows.bytes / 4);
  };
  const auto codes = [&](const vqgen_quantized& each, const PagedRows& rows, const char* line) {
    examine_written(fault, {each.batch_stride, shape.batch}, {each.head_stride, shape.kv_heads},
                    span(rows), line);
  };
  if (shape.page_tokens == 0) {
    codes(args.keys, rows_of(op.keys, shape.head_dim),
          "keys.batch_stride or keys.head_stride is less than the `tokens` rows that it spans; "
          "lay sequences and heads apart, or lower `tokens`");
    codes(args.values, rows_of(op.values, shape.value_dim()),
          "values.batch_stride or values.head_stride is less than the `tokens` rows that it spans; "
          "lay sequences and heads apart, or lower `tokens`");
  }
  // Pages may lie in any way that keeps rows apart, which no two strides tell.
  if (op.raw_slots() > 0 && shape.raw_page_tokens == 0) {
    examine_written(fault, {args.raw_batch_stride, shape.batch},
                    {args.raw_head_stride, shape.kv_heads}, op.raw_slots() * shape.head_dim,
                    "raw_batch_stride or raw_head_stride is less than the raw tokens that it "
                    "spans; lay sequences and heads apart");
    if (shape.value_dim() == shape.head_dim) return;
    const vqgen_raw_value_strides& strides = args.raw_value_strides;
    examine_written(fault, {strides.batch, shape.batch}, {strides.head, shape.kv_heads},
                    op.raw_slots() * shape.value_dim(),
                    "raw_value_strides.batch or .head is less than the raw tokens that it spans; "
                    "lay sequences and heads apart");
  }
}

}  // namespace

void examine_together(FirstFault& fault, const AttentionDecode& op, const Demands& demands,
                      const vqgen_attention_args& args) {
  examine_cache(fault, op, demands, args);
  // The caller gives both or neither.
  fault.present("new_keys", args.new_keys, 0, args.new_values != nullptr);
  fault.present("new_values", args.new_values, 0, args.new_keys != nullptr);
  fault.require(!op.shape.tree_mask || args.new_keys != nullptr, VQGEN_BAD_INPUT,
                "new_keys and new_values are null, and tree_mask of the config is true; give the "
                "keys and values of the drafts, which the cache does not hold");
  // Written so that NaN fails.
  fault.require(args.softmax_scale >= 0 && args.softmax_scale <= 3e38f, VQGEN_BAD_INPUT,
                "softmax_scale is negative or not finite; 0 stands for 1 / sqrt(head_dim)");
}

void examine_together(FirstFault& fault, const KvAppend& op, const Demands& demands,
                      const vqgen_append_args& args) {
  examine_cache(fault, op, demands, args);
  examine_written_cache(fault, op, args);
}

void examine_together(FirstFault& fault, const KvDequantize& op, const Demands& demands,
                      const vqgen_kv_dequantize_args& args) {
  examine_cache(fault, op, demands, args);
}

void examine_together(FirstFault& fault, const WeightDequantize& op, const Demands&,
                      const vqgen_weight_dequantize_args& args) {
  fault.require(args.first_row >= 0 && args.first_row <= op.shape.out_features - args.rows,
                VQGEN_RANGE,
                "first_row is negative, or first_row + rows is more than the rows of the weights; "
                "ask for rows that they have");
}

}  // namespace vqgen::library

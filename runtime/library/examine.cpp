#include "runtime/library/examine.h"

#include <limits>
#include <utility>

namespace vqgen::library {
namespace {

// Of keys or of values. Kernels count bytes of a page, and from page to page, in 32 bits. Groups of
// contiguous rows follow each other without a gap, so that no access needs more than they keep of
// the alignment; rows of a group stand within it.
void examine_strides(FirstFault& fault, const char* const (&names)[3],
                     const vqgen_page_strides& strides, std::int64_t kv_heads,
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
  one(names[2], strides.token, rows.bytes, kMost / demands.page_tokens, true, rows.in_group);
}

template <class Args>
void examine_pages(FirstFault& fault, std::int64_t kv_heads, const Demands& demands,
                   const Args& args) {
  const vqgen_pages& pages = args.pages;
  fault.present("pages.block_table", pages.block_table, kWordAlignment - 1);
  fault.require(pages.count >= 1 && pages.count <= std::numeric_limits<std::int32_t>::max(),
                VQGEN_BAD_INPUT, "pages.count is not 1 to 2^31 - 1; give the pages of the pool");
  fault.require(
      pages.columns >= 0 && pages.columns <= std::numeric_limits<std::int32_t>::max() &&
          pages.columns * demands.page_tokens >= args.tokens,
      VQGEN_BAD_INPUT,
      "pages.columns times page_tokens is less than `tokens`; give a wider block table, or "
      "fewer tokens");
  fault.require(args.keys.batch_stride == 0 && args.keys.head_stride == 0 &&
                    args.values.batch_stride == 0 && args.values.head_stride == 0,
                VQGEN_BAD_INPUT,
                "batch_stride and head_stride are of a cache without pages; leave them 0, and give "
                "the strides in `pages`");
  examine_strides(fault, {"pages.keys.page", "pages.keys.head", "pages.keys.token"}, pages.keys,
                  kv_heads, demands, demands.keys, pages);
  examine_strides(fault, {"pages.values.page", "pages.values.head", "pages.values.token"},
                  pages.values, kv_heads, demands, demands.values, pages);
}

// The cache that one op reads and another appends to.
template <class Shape, class Args>
void examine_cache(FirstFault& fault, const Shape& shape, const Demands& demands,
                   const Args& args) {
  const bool raw = demands.recent_tokens || demands.sinks;
  fault.quantized("keys", args.keys, demands.codes_mask, demands.scales);
  fault.quantized("values", args.values, demands.codes_mask, demands.value_scales);
  fault.present("key_smooth", args.key_smooth, kWordAlignment - 1, demands.key_smooth);
  fault.present("raw_keys", args.raw_keys, demands.elements_mask, raw);
  fault.present("raw_values", args.raw_values, demands.elements_mask, raw);
  if (raw) {
    fault.stride("raw_batch_stride", args.raw_batch_stride, demands.elements_mask, 2);
    fault.stride("raw_head_stride", args.raw_head_stride, demands.elements_mask, 2);
  }
  if (demands.page_tokens > 0) {
    examine_pages(fault, shape.kv_heads, demands, args);
  } else {
    fault.require(
        args.pages.block_table == nullptr, VQGEN_BAD_INPUT,
        "pages are given, and the op was prepared without page_tokens; leave them out, or "
        "prepare with page_tokens");
    fault.apart("keys.batch_stride", args.keys.batch_stride, shape.batch);
    fault.apart("keys.head_stride", args.keys.head_stride, shape.kv_heads);
    fault.apart("values.batch_stride", args.values.batch_stride, shape.batch);
    fault.apart("values.head_stride", args.values.head_stride, shape.kv_heads);
  }
  fault.apart("raw_batch_stride", args.raw_batch_stride, shape.batch, raw);
  fault.apart("raw_head_stride", args.raw_head_stride, shape.kv_heads, raw);
}

struct Stride {
  std::int64_t stride, count;
};

// What is written at two strides, `span` of their units each time, has each place once.
void examine_written(FirstFault& fault, Stride a, Stride b, std::int64_t span, const char* line) {
  if (a.count > 1 && (b.count <= 1 || a.stride > b.stride)) std::swap(a, b);
  if (a.count > 1) {
    fault.require(a.stride >= span, VQGEN_BAD_INPUT, line);
    fault.require((b.stride - span) / (a.count - 1) >= a.stride, VQGEN_BAD_INPUT, line);
  } else if (b.count > 1) {
    fault.require(b.stride >= span, VQGEN_BAD_INPUT, line);
  }
}

// An append's cache, where sequences and heads that overlap would overwrite each other.
void examine_written_cache(FirstFault& fault, const AppendShape& shape, const Demands& demands,
                           const vqgen_append_args& args) {
  const auto span = [&](const PagedRows& rows) {
    return (args.tokens + rows.in_group - 1) / rows.in_group * rows.in_group * (rows.bytes / 4);
  };
  const auto codes = [&](const vqgen_quantized& each, const PagedRows& rows, const char* line) {
    examine_written(fault, {each.batch_stride, shape.batch}, {each.head_stride, shape.kv_heads},
                    span(rows), line);
  };
  if (demands.page_tokens == 0) {
    codes(args.keys, demands.keys,
          "keys.batch_stride or keys.head_stride is less than the `tokens` rows that it spans; "
          "lay sequences and heads apart, or lower `tokens`");
    codes(args.values, demands.values,
          "values.batch_stride or values.head_stride is less than the `tokens` rows that it spans; "
          "lay sequences and heads apart, or lower `tokens`");
  }
  if (demands.recent_tokens || demands.sinks) {
    examine_written(fault, {args.raw_batch_stride, shape.batch},
                    {args.raw_head_stride, shape.kv_heads},
                    std::int64_t{shape.sinks + shape.recent_tokens} * shape.head_dim,
                    "raw_batch_stride or raw_head_stride is less than the raw tokens that it "
                    "spans; lay sequences and heads apart");
  }
}

template <class Args>
void examine_counts(FirstFault& fault, const Demands& demands, const Args& args) {
  fault.present("lengths", args.lengths, kWordAlignment - 1);
  fault.present("recent_counts", args.recent_counts, kWordAlignment - 1, demands.recent_tokens);
  fault.present("sinks", args.sinks, kWordAlignment - 1, demands.sinks);
}

}  // namespace

void examine(FirstFault& fault, const AttentionShape& shape, const Demands& demands,
             const vqgen_attention_args& args) {
  fault.present("query", args.query, kElementAlignment - 1);
  fault.present("out", args.out, kElementAlignment - 1);
  fault.present("lse", args.lse, kWordAlignment - 1);
  examine_cache(fault, shape, demands, args);
  examine_counts(fault, demands, args);
  const bool several = shape.query_tokens > 1;
  const bool fresh = several && (args.new_keys != nullptr || args.new_values != nullptr);
  fault.absent("query_start", args.query_start, !several);
  fault.absent("new_keys", args.new_keys, !several);
  fault.absent("new_values", args.new_values, !several);
  fault.present("query_start", args.query_start, kWordAlignment - 1, several);
  fault.present("new_keys", args.new_keys, demands.elements_mask, fresh);
  fault.present("new_values", args.new_values, demands.elements_mask, fresh);
  // Written so that NaN fails.
  fault.require(args.softmax_scale >= 0 && args.softmax_scale <= 3e38f, VQGEN_BAD_INPUT,
                "softmax_scale is negative or not finite; 0 stands for 1 / sqrt(head_dim)");
}

void examine(FirstFault& fault, const AppendShape& shape, const Demands& demands,
             const vqgen_append_args& args) {
  fault.present("new_keys", args.new_keys, kElementAlignment - 1);
  fault.present("new_values", args.new_values, kElementAlignment - 1);
  fault.present("positions", args.positions, kWordAlignment - 1);
  fault.present("counts", args.counts, kWordAlignment - 1, args.counts != nullptr);
  examine_cache(fault, shape, demands, args);
  examine_written_cache(fault, shape, demands, args);
}

void examine(FirstFault& fault, const DequantizeShape& shape, const Demands& demands,
             const vqgen_kv_dequantize_args& args) {
  fault.present("out_keys", args.out_keys, demands.elements_mask, args.tokens > 0);
  fault.present("out_values", args.out_values, demands.elements_mask, args.tokens > 0);
  examine_cache(fault, shape, demands, args);
  examine_counts(fault, demands, args);
}

void examine(FirstFault& fault, const MergeShape& shape, const Demands& demands,
             const vqgen_merge_args& args) {
  if (args.rows == 0) return;
  fault.present("out", args.out, demands.elements_mask);
  fault.present("lse", args.lse, kWordAlignment - 1);
  fault.present("outs", args.outs, alignof(void*) - 1);
  fault.present("lses", args.lses, alignof(void*) - 1);
  if (fault.status() != VQGEN_OK) return;
  for (int i = 0; i < shape.parts; ++i) {
    fault.present("outs", args.outs[i], demands.elements_mask);
    fault.present("lses", args.lses[i], kWordAlignment - 1);
  }
}

}  // namespace vqgen::library

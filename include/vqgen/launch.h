/* Launches of prepared ops: their arguments, and the functions that queue them. A part of vqgen.h,
 * which includes it. */
#ifndef VQGEN_LAUNCH_H
#define VQGEN_LAUNCH_H

#include <vqgen/vqgen.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One quantized tensor in device memory, as vqgen quantize packs it. Strides count 32-bit words,
 * with the padding of the layout. */
typedef struct vqgen_quantized {
  const void* codes;     /* packed rows, aligned as the op's description says ("codes_alignment") */
  const void* codebooks; /* [unit][stage][entry][vector_size], 16 bits each, 16-byte aligned; of
                            entry_type int8 integers within -127..127, as elements; of keys in
                            parts those of part 0, then those of part 1, .. */
  const float* scales;   /* [unit][stage]; null without stage scales */
  int64_t batch_stride;  /* between sequences; 0 for one, pages and weights alone */
  int64_t head_stride;   /* between heads; 0 for one, pages and weights alone */
} vqgen_quantized;

/* Strides of the codes of keys or of values in a cache of pages, in bytes: between pages, between
 * KV heads, and between the tokens of a page; where the layout has groups of rows, between groups
 * as many times the last as a group has rows, and rows of a head begin with a group. */
typedef struct vqgen_page_strides {
  int64_t page, head, token;
} vqgen_page_strides;

/* Where a cache's pages stand, of a config whose shape has page_tokens; all zero for others. Token
 * t of sequence b stands in page block_table[b][t / page_tokens], of the pool that begins at
 * `codes`. Pages stand in any order; sequences that read may share them; none is read or written
 * but those that hold a sequence's tokens, and of the table no other entry. Each page has room for
 * page_tokens tokens, of which the last may hold fewer.
 *
 * A kernel trusts the table: a number that is no page's is memory that is not the cache's, and a
 * page that two sequences append to, or one sequence twice, has either's codes. The host backend
 * refuses these with VQGEN_BAD_INPUT before it begins. */
typedef struct vqgen_pages {
  const int32_t* block_table; /* [batch][columns], device memory */
  int64_t columns;            /* columns x page_tokens is `tokens` of the launch at least */
  int64_t count;              /* pages of the pool, numbered from 0 */
  vqgen_page_strides keys, values;
} vqgen_pages;

/* Arguments of attention_decode. All memory is the device's. 16-bit elements are of the config's
 * dtype. Set struct_bytes to the size of the struct and zero what is not used. */
typedef struct vqgen_attention_args {
  size_t struct_bytes;
  int64_t tokens;    /* the most that a query token sees now; picks the kernel */
  const void* query; /* [batch][query_heads][head_dim]; a row a query token, see query_start */
  void* out;         /* likewise */
  float* lse;        /* [batch][query_heads], natural log; likewise */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null where the keys are not smoothed */
  const void* raw_keys;    /* [batch][kv_heads][sinks + window][head_dim]; null without both */
  const void* raw_values;
  int64_t raw_batch_stride; /* elements */
  int64_t raw_head_stride;  /* elements */
  /* Of these too, and of lengths with new_keys, the host backend alone finds those out of range.
   * On a device they make results meaningless, but nothing is written outside of out, lse and the
   * workspace. */
  const int32_t* lengths;       /* [batch], each 0..tokens */
  const int32_t* recent_counts; /* [batch], each 0..the config's, less flush_block - 1; null without
                             a window */
  const int32_t* sinks;         /* [batch], each 0..the config's; null without sinks */
  float softmax_scale;          /* 0: 1 / sqrt(head_dim) */
  /* Where the config's query_tokens is more than 1, else null. [batch + 1]: rows query_start[b] ..
   * query_start[b + 1] - 1 of query, out and lse are the newest tokens of sequence b, in their
   * order; those past query_tokens are left out, and so are rows of no sequence. Each sees the
   * tokens up to its own, and has the window of windows[b] tokens that it would have alone. They
   * begin at 0 or later and do not descend: the host backend refuses others, a device leaves those
   * out that descend or reach past row query_start[batch] - 1. */
  const int32_t* query_start;
  /* Their keys and values, raw, [row][kv_heads][head_dim], aligned as raw_keys: then `lengths` does
   * not count them, and lengths[b] with them is at most `tokens`. Both null: they have been
   * appended, and `lengths` counts them; of n query tokens, windows[b] + n - 1 is at most the
   * config's window, less flush_block - 1, or windows[b] is 0. */
  const void* new_keys;
  const void* new_values;
  vqgen_pages pages; /* of a cache in pages */
} vqgen_attention_args;

/* Arguments of kv_append, which encodes new tokens and writes their rows to the cache that an
 * attention with the same formats reads. The codes of `keys` and `values` are written, all else of
 * them is read. */
typedef struct vqgen_append_args {
  size_t struct_bytes;
  int64_t tokens;         /* that a sequence of the cache has room for, 0 to the config's */
  const void* new_keys;   /* [batch][new_tokens][kv_heads][head_dim], raw */
  const void* new_values; /* likewise */
  /* [batch] token that a sequence's first new one becomes. Negative: the sequence is left alone;
   * tokens from `tokens` on are left out. */
  const int32_t* positions;
  const int32_t* counts; /* [batch] new tokens that are real, 0..new_tokens; null: all */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null where the keys are not smoothed */
  void* raw_keys; /* [batch][kv_heads][sinks + window][head_dim], written; null without both */
  void* raw_values;
  int64_t raw_batch_stride; /* elements */
  int64_t raw_head_stride;  /* elements */
  vqgen_pages pages;        /* of a cache in pages */
} vqgen_append_args;

/* Arguments of kv_dequantize, which writes cached tokens as dense keys and values: what an
 * attention with the same formats reads, raw tokens by the same rule. */
typedef struct vqgen_kv_dequantize_args {
  size_t struct_bytes;
  int64_t tokens;   /* rows of a head of the outputs, 0 to the config's; picks the kernel */
  void* out_keys;   /* [batch][kv_heads][tokens][head_dim], 16-byte aligned; transforms undone. Rows
                       from a sequence's length on are not written */
  void* out_values; /* likewise */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null where the keys are not smoothed */
  const void* raw_keys;    /* [batch][kv_heads][sinks + window][head_dim]; null without both */
  const void* raw_values;
  int64_t raw_batch_stride;     /* elements */
  int64_t raw_head_stride;      /* elements */
  const int32_t* lengths;       /* [batch] tokens of a sequence; of more than `tokens` the first */
  const int32_t* recent_counts; /* [batch], of the whole length; null without a window */
  const int32_t* sinks;         /* [batch], null without sinks */
  vqgen_pages pages;            /* of a cache in pages */
} vqgen_kv_dequantize_args;

/* Arguments of attention_merge, which makes one of `parts` results of attention over disjoint sets
 * of tokens: out = sum w_i out_i / sum w_i with w_i = exp(lse_i - max lse), lse = log sum exp
 * lse_i. A part whose lse of a row and head is -inf counts nothing there, whatever its out holds;
 * where all are, out is zeros and lse -inf. NaN or +inf in an lse, and NaN in the out of a part
 * that counts, make NaN, of that row and head alone. */
typedef struct vqgen_merge_args {
  size_t struct_bytes;
  int64_t rows;             /* query tokens now, 0 to the config's */
  int32_t parts;            /* the config's */
  const void* const* outs;  /* host memory: a pointer of each part, to [rows][heads][head_dim],
                               16-byte aligned */
  const float* const* lses; /* likewise, to [rows][heads], natural log */
  void* out;                /* [rows][heads][head_dim], 16-byte aligned */
  float* lse;               /* [rows][heads] */
  /* out may be one of outs, lse one of lses; otherwise none that is written overlaps another. */
} vqgen_merge_args;

/* Arguments of int8_quantize and scalar_dequantize, a matrix [tokens][channels] to and from int8
 * with a scale for each channel: code = x / scale, rounded to nearest even, within -127..127, of
 * NaN -127; x' = code * scale in fp32, rounded to the config's dtype. With "scales": "computed"
 * int8_quantize writes max |x| / 127 over the channel's finite elements, 1 where that is no
 * normal number. */
typedef struct vqgen_scalar_args {
  size_t struct_bytes;
  int64_t tokens;   /* now, 0 to the config's; with 0 computed scales are 1 */
  const void* from; /* dense [tokens][channels]: of int8_quantize f32, f16 or bf16, as the
                       config's dtype, of scalar_dequantize int8. Aligned as the op's description
                       says, int8 by "codes_alignment", else by "elements_alignment" */
  void* to;         /* likewise the other; overlaps none */
  float* scales;    /* [channels], 16-byte aligned; written where they are computed, else read, and
                       positive */
} vqgen_scalar_args;

/* Arguments of gemv and gemm, y = x W^T. With the config's `experts` rows of x and y stand sorted
 * by expert, and what `weights` and output_scales point to is [experts][..], expert after expert
 * without gaps. */
typedef struct vqgen_linear_args {
  size_t struct_bytes;
  int64_t m; /* rows of x and y now, 0 to the config's; picks the kernel. With experts: of all of
                them, to the config's total_rows */
  const void* x; /* [m][in_features] */
  void* y;       /* [m][out_features] */
  vqgen_quantized weights;
  const float* output_scales; /* [out_features]; null where the format has none */
  /* With experts, else null. [experts + 1]: rows expert_rows[e] .. expert_rows[e + 1] - 1 are of
   * expert e, which may have none. They do not descend, and lie within 0..`m`; rows of no expert
   * are left alone. An expert with more rows than the config's has its first ones alone. What is
   * out of range makes results meaningless, but writes nothing outside of y; the host backend
   * refuses all of this with VQGEN_BAD_INPUT before it begins. */
  const int32_t* expert_rows;
} vqgen_linear_args;

/* Codebooks, scales, smoothing of keys and weights may be loaded while kernels before the op on the
 * stream are still in flight (vqgen_options.dependent_launches): none of these may store them,
 * unless a synchronization, a copy or a kernel launched in the ordinary way lies between. All else
 * is loaded after them.
 *
 * Queues the op's kernels on `stream` (a CUstream; null is the default stream of the current
 * context) and returns; on the host, runs them. The context of the runtime is current. The
 * workspace is 16-byte aligned device memory that nothing else uses until the launch is done; what
 * it holds does not matter.
 * With 0 rows or tokens nothing is queued, and matrices may be null. What is written overlaps
 * nothing, but where said.
 * No allocation, lock, environment, disk or driver call but the launches: safe while the stream is
 * captured. Only the first launch with a workspace under a plan with "combine": "last_block" takes
 * a lock, and keeps the workspace's address with counters of its own, in the library's memory, for
 * as long as the runtime and its ops live; where a MiB of these is full it allocates another. So
 * use workspaces again. */
VQGEN_API vqgen_status vqgen_attention_launch(const vqgen_op* op, const vqgen_attention_args* args,
                                              void* workspace, size_t workspace_bytes,
                                              void* stream);
VQGEN_API vqgen_status vqgen_append_launch(const vqgen_op* op, const vqgen_append_args* args,
                                           void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_kv_dequantize_launch(const vqgen_op* op,
                                                  const vqgen_kv_dequantize_args* args,
                                                  void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_attention_merge_launch(const vqgen_op* op,
                                                    const vqgen_merge_args* args,
                                                    void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_linear_launch(const vqgen_op* op, const vqgen_linear_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream);
VQGEN_API vqgen_status vqgen_scalar_launch(const vqgen_op* op, const vqgen_scalar_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream);

/* What a matrix lost on its way through int8 and back. */
typedef struct vqgen_scalar_errors {
  double l2;         /* root of the summed squares of the differences */
  double largest;    /* difference in magnitude */
  double mean_score; /* mean over tokens and queries of |q.x - q.x'|; 0 without queries */
} vqgen_scalar_errors;

/* Measures it on the host: original and restored [tokens][channels], queries
 * [query_count][channels], all fp32 in host memory; sums are doubles, by one thread. What is not
 * finite makes its measures so. VQGEN_BAD_INPUT on null pointers to what has elements and on
 * negative sizes. */
VQGEN_API vqgen_status vqgen_measure_scalar_errors(const float* original, const float* restored,
                                                   int64_t tokens, int64_t channels,
                                                   const float* queries, int64_t query_count,
                                                   vqgen_scalar_errors* errors);

#ifdef __cplusplus
}
#endif
#endif

/* Launches of prepared ops: argument structs and the functions that queue them. vqgen.h includes
 * this header. */
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
  const void* codebooks; /* [unit][stage][entry][vector_size], 16 bits each, 16-byte aligned; with
                            entry_type int8 integers within -127..127, as elements; for keys in
                            parts those of part 0, then those of part 1, .. */
  const float* scales;   /* [unit][stage]; null without stage scales */
  int64_t batch_stride;  /* between sequences; 0 for a single one, paged caches and weights */
  int64_t head_stride;   /* between heads; 0 for a single one, paged caches and weights */
} vqgen_quantized;

/* Strides in bytes of the codes of keys or of values in a paged cache: between pages, between KV
 * heads, and between the tokens of a page. If the layout has groups of rows, groups are `token`
 * times the rows of a group apart, and rows of a head begin with a group. */
typedef struct vqgen_page_strides {
  int64_t page, head, token;
} vqgen_page_strides;

/* Pages of a cache whose config has page_tokens; all zero for other caches. Token t of sequence b
 * is in page block_table[b][t / page_tokens] of the pool that begins at `codes`. A page holds up to
 * page_tokens tokens of one sequence. Pages may have any order, and sequences that are only read
 * may share them; only pages and table entries of a sequence's tokens are accessed.
 *
 * A kernel trusts the table: with a number out of range it accesses memory outside of the pool, and
 * a page that is appended to twice gets the codes of either. The host backend refuses both with
 * VQGEN_BAD_INPUT before it begins. */
typedef struct vqgen_pages {
  const int32_t* block_table; /* [batch][columns], device memory */
  int64_t columns;            /* columns x page_tokens is at least `tokens` of the launch */
  int64_t count;              /* pages of the pool, numbered from 0 */
  vqgen_page_strides keys, values;
} vqgen_pages;

/* Pages of raw rows, of a config with raw_page_tokens; else all zero. Token t of sequence b is row
 * t % raw_page_tokens of page block_table[b][t / raw_page_tokens] of the pools that begin at
 * raw_keys and raw_values; raw_batch_stride is between pages. An append writes the row of each new
 * token. A reader takes those of the window, and no other entry of the table is read. */
typedef struct vqgen_raw_pages {
  const int32_t* block_table; /* [batch][columns], device memory */
  int64_t columns;            /* columns x raw_page_tokens is at least `tokens` of the launch */
  int64_t count;              /* pages of the pool, numbered from 0 */
  int64_t token_stride;       /* elements between the rows of a page */
} vqgen_raw_pages;

/* Strides in elements of raw_values, if the config has a value_head_dim other than head_dim:
 * between sequences, or with raw_page_tokens between pages; between KV heads; and between the rows
 * of a page, zero without pages. Else all zero, and raw_values has the strides of raw_keys. */
typedef struct vqgen_raw_value_strides {
  int64_t batch, head, token;
} vqgen_raw_value_strides;

/* Arguments of attention_decode. Of a config with value_head_dim, rows of values, of their means
 * and rotations, and of out have that many channels in place of head_dim. All memory is device
 * memory of the caller's; 16-bit elements have the config's dtype. Set struct_bytes to the size of
 * the struct and unused fields to zero. */
typedef struct vqgen_attention_args {
  size_t struct_bytes;
  int64_t tokens;    /* the most that a query token sees now; picks the kernel */
  const void* query; /* [batch][query_heads][head_dim]; a row per query token, see query_start */
  void* out;         /* [batch][query_heads][value_head_dim], rows as of `query` */
  float* lse;        /* [batch][query_heads], natural log, rows as of `query` */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null if the keys are not smoothed */
  /* The basis of formats with center and klt, else null: codes and raw slots hold
   * z = (x - mean) rotation. mean is [kv_heads][head_dim], rotation [kv_heads][head_dim][head_dim],
   * 16-byte aligned and orthogonal, with z[j] the sum over i of x[i] rotation[i][j]. */
  const float* key_mean;
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  const void* raw_keys; /* [batch][kv_heads][sinks + window][head_dim]; null without both */
  const void* raw_values;
  int64_t raw_batch_stride; /* elements */
  int64_t raw_head_stride;  /* elements */
  /* Values out of range, here and in the fields below, are refused by the host backend alone. On a
   * device they make results meaningless, but nothing is written outside of out, lse and the
   * workspace. */
  const int32_t* lengths;       /* [batch], each 0..tokens */
  const int32_t* recent_counts; /* [batch], each 0..the config's, less flush_block - 1; null without
                             a window */
  const int32_t* sinks;         /* [batch], each 0..the config's; null without sinks */
  float softmax_scale;          /* 0: 1 / sqrt(head_dim) */
  /* [batch + 1] if the config's query_tokens is more than 1, else null: rows query_start[b] ..
   * query_start[b + 1] - 1 of query, out and lse are the newest tokens of sequence b, in order.
   * Each sees the tokens up to its own, with the window of windows[b] tokens that it would have
   * alone. Rows past query_tokens of a sequence are ignored, as are rows of no sequence. The
   * numbers begin at 0 or later and do not descend: the host backend refuses others, a device
   * ignores sequences that descend or pass row query_start[batch] - 1.
   * Where the config says shared_prefix, the rows are query tokens of several sequences that share
   * the first lengths[b] tokens, and each sees all of these. vqgen_attention_merge_launch() merges
   * the result with that over each sequence's own tokens, which come behind. */
  const int32_t* query_start;
  /* Raw keys and values of the query tokens, [row][kv_heads][head_dim], aligned as raw_keys, which
   * `lengths` does not count; lengths[b] with them is at most `tokens`. Both null: they have been
   * appended, and `lengths` counts them; with n query tokens, windows[b] + n - 1 is then at most
   * the config's window, less flush_block - 1, or windows[b] is 0. Both null with shared_prefix. */
  const void* new_keys;
  const void* new_values;
  vqgen_pages pages; /* of a paged cache */
  /* [query_heads] where the config says sink_logits, else null: each adds exp(logit) to its head's
   * denominator, and to its lse; -inf adds nothing. */
  const float* sink_logits;
  vqgen_raw_pages raw_pages;
  /* 64 bits per row of `query` where the config says tree_mask, else null. The query tokens of a
   * sequence are then drafts that form a tree: new_keys and new_values are given, in any order in
   * which parents come first. Bit j of draft i, counted from the sequence's first, says that it
   * sees draft j: its ancestors and itself. It is at position lengths[b] + its number of ancestors,
   * and sees the cache as the token there would, by recent_counts[b] and sliding_window. The host
   * backend refuses a draft that does not see itself, or sees a later one; a device takes bit i as
   * set and later ones as clear. The call leaves the cache as it is: append the rows of the drafts
   * that are accepted, in the order of their path, by vqgen_append_launch(). */
  const int64_t* tree_mask;
  vqgen_raw_value_strides raw_value_strides;
} vqgen_attention_args;

/* Arguments of kv_append, which encodes new tokens and writes their rows to the cache that an
 * attention with the same formats reads. Of `keys` and `values` the codes are written, all else is
 * read. All memory is device memory. */
typedef struct vqgen_append_args {
  size_t struct_bytes;
  int64_t tokens;         /* capacity of a sequence in the cache, 0 to the config's */
  const void* new_keys;   /* [batch][new_tokens][kv_heads][head_dim], raw */
  const void* new_values; /* [batch][new_tokens][kv_heads][value_head_dim], raw */
  /* [batch] position of a sequence's first new token. Negative: the sequence is left alone; tokens
   * from position `tokens` on are ignored. */
  const int32_t* positions;
  const int32_t* counts; /* [batch] new tokens that are real, 0..new_tokens; null: all */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null if the keys are not smoothed */
  const float* key_mean;   /* these four as in vqgen_attention_args */
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  void* raw_keys; /* [batch][kv_heads][sinks + window][head_dim], written; null without both */
  void* raw_values;
  int64_t raw_batch_stride; /* elements */
  int64_t raw_head_stride;  /* elements */
  vqgen_pages pages;        /* of a paged cache */
  vqgen_raw_pages raw_pages;
  vqgen_raw_value_strides raw_value_strides;
} vqgen_append_args;

/* Arguments of kv_dequantize, which writes cached tokens as dense keys and values: what an
 * attention with the same formats reads, with raw tokens by the same rule. All memory is device
 * memory. */
typedef struct vqgen_kv_dequantize_args {
  size_t struct_bytes;
  int64_t tokens;   /* rows of a head of the outputs, 0 to the config's; picks the kernel */
  void* out_keys;   /* [batch][kv_heads][tokens][head_dim], 16-byte aligned, transforms undone; rows
                       from a sequence's length on are not written */
  void* out_values; /* as out_keys, rows of value_head_dim channels */
  vqgen_quantized keys, values;
  const float* key_smooth; /* [kv_heads][head_dim]; null if the keys are not smoothed */
  const float* key_mean;   /* these four as in vqgen_attention_args */
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  const void* raw_keys; /* [batch][kv_heads][sinks + window][head_dim]; null without both */
  const void* raw_values;
  int64_t raw_batch_stride; /* elements */
  int64_t raw_head_stride;  /* elements */
  const int32_t* lengths; /* [batch] tokens of a sequence; beyond `tokens` the first are written */
  const int32_t* recent_counts; /* [batch], of the whole length; null without a window */
  const int32_t* sinks;         /* [batch], null without sinks */
  vqgen_pages pages;            /* of a paged cache */
  vqgen_raw_pages raw_pages;
  vqgen_raw_value_strides raw_value_strides;
} vqgen_kv_dequantize_args;

/* Arguments of attention_merge, which merges `parts` results of attention over disjoint sets of
 * tokens: out = sum w_i out_i / sum w_i with w_i = exp(lse_i - max lse), lse = log sum exp lse_i. A
 * part whose lse of a row and head is -inf does not count there, whatever its out holds; if all
 * are, out is zeros and lse -inf. NaN or +inf in an lse, and NaN in the out of a part that counts,
 * make that row and head NaN, and no other. */
typedef struct vqgen_merge_args {
  size_t struct_bytes;
  int64_t rows;             /* query tokens now, 0 to the config's */
  int32_t parts;            /* the config's */
  const void* const* outs;  /* host memory: a device pointer per part, to [rows][heads][head_dim],
                               16-byte aligned */
  const float* const* lses; /* host memory: a device pointer per part, to [rows][heads], natural
                               log */
  void* out;                /* [rows][heads][head_dim], 16-byte aligned */
  float* lse;               /* [rows][heads] */
  /* out may be one of outs, lse one of lses; otherwise outputs must not overlap anything. */
} vqgen_merge_args;

/* Arguments of int8_quantize and int8_dequantize, which convert a matrix [tokens][channels] to
 * and from int8 with a scale per channel: code = x / scale, rounded to nearest even, within
 * -127..127, with NaN as -127; x' = code * scale in fp32, rounded to the config's dtype. With
 * "scales": "computed" int8_quantize writes max |x| / 127 over the channel's finite elements, or
 * 1 if that is no normal number. All memory is device memory. */
typedef struct vqgen_scalar_args {
  size_t struct_bytes;
  int64_t tokens;   /* now, 0 to the config's; with 0 computed scales are 1 */
  const void* from; /* [tokens][channels], dense: for int8_quantize of the config's dtype (f32,
                       f16, bf16), for int8_dequantize int8. Aligned as the op's description
                       says, int8 by "codes_alignment", else by "elements_alignment" */
  void* to;         /* the result, shaped and aligned alike; must not overlap other arguments */
  float* scales;    /* [channels], 16-byte aligned; written if they are computed, else read, and
                       positive */
} vqgen_scalar_args;

/* Arguments of gemv and gemm, y = x W^T. If the config has `experts`, rows of x and y are sorted by
 * expert, and `weights` and output_scales point to [experts][..], dense, expert after expert. All
 * memory is device memory; x and y have the config's dtype. */
typedef struct vqgen_linear_args {
  size_t struct_bytes;
  int64_t m; /* rows of x and y now, 0 to the config's; picks the kernel. With experts: of all of
                them, to the config's total_rows */
  const void* x; /* [m][in_features] */
  void* y;       /* [m][out_features]; with `gate` in the config [m][out_features / 2] */
  vqgen_quantized weights;
  const float* output_scales; /* [out_features]; null if the format has none */
  /* [experts + 1] with experts, else null: rows expert_rows[e] .. expert_rows[e + 1] - 1 are expert
   * e's, which may have none. The numbers do not descend and lie within 0..`m`; rows of no
   * expert are left alone, and rows of an expert past the config's maximum are ignored. Other
   * numbers make results meaningless but write nothing outside of y; the host backend refuses them
   * with VQGEN_BAD_INPUT before it begins. */
  const int32_t* expert_rows;
  /* Shaped as y, which it may be, with `residual` in the config, else null: is added. */
  const void* residual;
} vqgen_linear_args;

/* Arguments of weight_dequantize, which writes rows of quantized weights as dense ones:
 * out[r][i] = output_scale W[first_row + r][i], rounded to the config's dtype. All memory is device
 * memory. */
typedef struct vqgen_weight_dequantize_args {
  size_t struct_bytes;
  int64_t rows;               /* of `out` now, 0 to the config's */
  int64_t first_row;          /* of the weights; with `rows` at most out_features */
  void* out;                  /* [rows][in_features], aligned as the op's description says */
  vqgen_quantized weights;    /* [out_features], as of gemv and gemm */
  const float* output_scales; /* [out_features]; null if the format has none */
} vqgen_weight_dequantize_args;

/* Each function queues the op's kernels on `stream` (a CUstream; null is the default stream of the
 * current context) and returns; on the host it runs them. The runtime's context must be current,
 * see vqgen_make_current(). `workspace` is 16-byte aligned device memory of workspace_bytes, whose
 * contents do not matter and which nothing else uses until the launch is done; the caller owns it.
 * It may be null where vqgen_op_workspace_bytes() is 0, as of an append without center and klt.
 * With 0 rows or tokens nothing is queued, and matrices may be null. Outputs must not overlap other
 * arguments unless said otherwise.
 *
 * Example, for a gemv op of a config with in_features 4096 and out_features 11008:
 *
 *   vqgen_linear_args args = {0};
 *   args.struct_bytes = sizeof args;
 *   args.rows = 1;
 *   args.x = x;                         [1][4096]
 *   args.y = y;                         [1][11008]
 *   args.weights.codes = codes;
 *   args.weights.codebooks = codebooks;
 *   vqgen_status status = vqgen_linear_launch(op, &args, workspace, bytes, stream);
 *
 * Threads: launches need no lock, allocation, environment, disk or driver call but the launches
 * themselves, so they may run on many threads and while the stream is captured. Only the first
 * launch with a workspace under a plan with "combine": "last_block" takes a lock and remembers the
 * workspace's address, with counters in the library's memory (another MiB when they are full), as
 * long as the runtime and its ops live: reuse workspaces.
 *
 * Codebooks, scales and smoothing of keys and weights may be loaded while earlier kernels on the
 * stream are still in flight (vqgen_options.dependent_launches): these must not store them, unless
 * a synchronization, a copy or an ordinarily launched kernel lies between. All else is loaded after
 * them.
 *
 * Errors: VQGEN_BAD_INPUT for null or contradictory arguments or an op of another kind, VQGEN_RANGE
 * for more tokens or rows than prepared, VQGEN_WORKSPACE, VQGEN_ALIGNMENT, and VQGEN_DEVICE if the
 * driver refuses the launch. Nothing is queued then. */
VQGEN_API vqgen_status vqgen_attention_launch(const vqgen_op* op, const vqgen_attention_args* args,
                                              void* workspace, size_t workspace_bytes,
                                              void* stream);
VQGEN_API vqgen_status vqgen_append_launch(const vqgen_op* op, const vqgen_append_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream);
VQGEN_API vqgen_status vqgen_kv_dequantize_launch(const vqgen_op* op,
                                                  const vqgen_kv_dequantize_args* args,
                                                  void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_attention_merge_launch(const vqgen_op* op,
                                                    const vqgen_merge_args* args,
                                                    void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_linear_launch(const vqgen_op* op, const vqgen_linear_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream);
VQGEN_API vqgen_status vqgen_weight_dequantize_launch(const vqgen_op* op,
                                                      const vqgen_weight_dequantize_args* args,
                                                      void* stream); /* needs no workspace */
VQGEN_API vqgen_status vqgen_scalar_launch(const vqgen_op* op, const vqgen_scalar_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream);

/* For bindings: the arrays that an op ("attention_decode") may take, as JSON, in the order of
 * calls. Each has "name" as in the op's description; "offset" of its pointer in the op's struct of
 * arguments, in bytes, but where it stands in an array of the caller's; whether it is "written",
 * "optional" (null means something) and "conditional" (of some configs); "free", a dimension whose
 * size is the call's, from "least" on, or -1, in configs that take the argument "free_with"; and
 * how many leading dimensions are "strided". "" where there is no such op. Lives as long as the
 * library. */
VQGEN_API const char* vqgen_arguments(const char* op);

/* Errors of a matrix after int8 and back. */
typedef struct vqgen_scalar_errors {
  double l2;         /* root of the summed squared differences */
  double largest;    /* largest magnitude of a difference */
  double mean_score; /* mean over tokens and queries of |q.x - q.x'|; 0 without queries */
} vqgen_scalar_errors;

/* Measures the errors on the host, in double sums on this thread: original and restored
 * [tokens][channels], queries [query_count][channels], all fp32 in host memory. Elements that are
 * not finite make their measures so. VQGEN_BAD_INPUT for null pointers to arrays with elements and
 * for negative sizes. */
VQGEN_API vqgen_status vqgen_measure_scalar_errors(const float* original, const float* restored,
                                                   int64_t tokens, int64_t channels,
                                                   const float* queries, int64_t query_count,
                                                   vqgen_scalar_errors* errors);

#ifdef __cplusplus
}
#endif
#endif

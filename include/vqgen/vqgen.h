/* C11 interface of libvqgen: a config becomes an op, once; an op is launched as often as wanted, on
 * the caller's stream and memory. docs/guides/embedding.md is the guide.
 *
 *   vqgen_runtime* runtime = NULL;
 *   vqgen_op* op = NULL;
 *   if (vqgen_runtime_create(NULL, &runtime) != VQGEN_OK ||
 *       vqgen_prepare_file(runtime, "config.json", NULL, &op) != VQGEN_OK) {
 *     fprintf(stderr, "%s\n", vqgen_last_error());
 *     exit(1);
 *   }
 *   size_t bytes = vqgen_op_workspace_bytes(op);          allocate `workspace` once
 *   vqgen_linear_launch(op, &args, workspace, bytes, stream);        for each token
 *   vqgen_op_release(op);
 *   vqgen_runtime_destroy(runtime);
 *
 * Threads: any function may be called from any thread at any time, except that a handle must not be
 * destroyed while another call uses it. Errors: functions that can fail return a status, and
 * vqgen_last_error() then has one line with what failed and the remedy. Handles are opaque.
 * Strings are UTF-8, zero-terminated, and copied by the callee.
 */
#ifndef VQGEN_VQGEN_H
#define VQGEN_VQGEN_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define VQGEN_API
#else
#define VQGEN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum vqgen_status {
  VQGEN_OK = 0,
  VQGEN_BAD_INPUT = 2,  /* a config, option or argument is malformed or missing */
  VQGEN_INFEASIBLE = 3, /* the input is well formed, but no kernel can do it */
  VQGEN_DEVICE = 5,     /* compiler, driver or device is missing or failed */
  VQGEN_MISS = 6,       /* not prepared, and policy or vqgen_freeze() forbids to compile */
  VQGEN_CAPTURING = 7,  /* not prepared, and the stream is being captured */
  VQGEN_WORKSPACE = 8,  /* the workspace is too small or not aligned */
  VQGEN_ALIGNMENT = 9,  /* a pointer or stride is less aligned than the kernel needs */
  VQGEN_RANGE = 10,     /* more tokens or rows than the op was prepared for */
  VQGEN_INTERNAL = 11   /* out of memory, or a fault of vqgen itself */
} vqgen_status;

/* Returns the status's name: "bad_input" and so on; "unknown" for other numbers. Static. */
VQGEN_API const char* vqgen_status_name(vqgen_status status);

/* Returns why the last failed call on this thread failed; "" if none has. The text lives until the
 * next failure on this thread. */
VQGEN_API const char* vqgen_last_error(void);

/* Returns the version of the library that runs: "0.1.0". Static. */
VQGEN_API const char* vqgen_version(void);

typedef enum vqgen_backend {
  VQGEN_CUDA = 0, /* a GPU, through the driver */
  VQGEN_HOST = 1  /* the CPU, for tests: slow, and checks every memory access of a kernel */
} vqgen_backend;

/* What vqgen_prepare() does with a kernel that is neither in memory nor in the disk cache. */
typedef enum vqgen_miss_policy {
  VQGEN_COMPILE = 0, /* compiles it, which takes a second or so */
  VQGEN_FAIL = 1,    /* returns VQGEN_MISS */
  /* Prepares the plain plan that can do every problem (dataflow simt, by the heuristics), compiled
   * if need be, and compiles the wanted plan in the background; later launches use that.
   */
  VQGEN_FALLBACK = 2
} vqgen_miss_policy;

#define VQGEN_CURRENT_CONTEXT (-1)

/* Options of a runtime. Start from vqgen_options_init(), which sets struct_bytes and the defaults
 * given below. Strings are copied; null means the default. */
typedef struct vqgen_options {
  size_t struct_bytes;
  int32_t backend; /* vqgen_backend; default VQGEN_CUDA */
  /* CUDA: number of the device, whose primary context is used; or VQGEN_CURRENT_CONTEXT for the
   * context current on the calling thread, which must outlive the runtime and its ops. Default 0 */
  int32_t device;
  int32_t miss;        /* vqgen_miss_policy; default VQGEN_COMPILE */
  int32_t max_buckets; /* most kernels per op, 1..32; default 16 */
  int32_t threads;     /* threads that compile the buckets of one op, 1..256; default 1 */
  /* Folder of compiled kernels. Null: VQGEN_CACHE_DIR, XDG_CACHE_HOME/vqgen, HOME/.cache/vqgen, or
   * a private temporary folder. "": kernels are not stored. The read-only VQGEN_CACHE_PATH and
   * VQGEN_CACHE_MAX_BYTES apply in any case. */
  const char* cache_dir;
  const char* nvrtc;    /* libnvrtc or its folder; null: VQGEN_NVRTC, or the usual places */
  const char* compiler; /* of the host backend; null: VQGEN_CXX, or g++ */
  /* Programmatic dependent launch (sm_90 on): 1 lets kernels start while the previous work on the
   * stream ends, if that allows it; 0 does not; -1 (default) reads VQGEN_DEPENDENT_LAUNCHES, or 1.
   */
  int32_t dependent_launches;
} vqgen_options;

/* Sets struct_bytes and all defaults. */
VQGEN_API void vqgen_options_init(vqgen_options* options);

typedef struct vqgen_runtime vqgen_runtime;
typedef struct vqgen_op vqgen_op;

/* Creates a runtime: one device and one context of it. Only this call reads the environment. Null
 * `options` mean the defaults. The caller owns *runtime and ends it by vqgen_runtime_destroy().
 * VQGEN_BAD_INPUT for bad options, VQGEN_DEVICE without a device or driver. */
VQGEN_API vqgen_status vqgen_runtime_create(const vqgen_options* options, vqgen_runtime** runtime);

/* Destroys the runtime and releases the ops that it keeps; ops with a handle live on. Synchronize
 * the launches of the others before. Waits for a background compilation: under VQGEN_FALLBACK a
 * program must call this before it ends or unloads the library. Null is allowed. */
VQGEN_API void vqgen_runtime_destroy(vqgen_runtime* runtime);

/* Makes the runtime's CUDA context current on this thread, as launches need it, for threads that
 * have none from CUDA itself. Does nothing on the host. VQGEN_DEVICE if the driver fails. */
VQGEN_API vqgen_status vqgen_make_current(vqgen_runtime* runtime);

/* Where a prepared op came from. */
typedef enum vqgen_provenance {
  VQGEN_COMPILED = 0,    /* this call compiled it */
  VQGEN_FROM_DISK = 1,   /* all of its kernels came from the cache */
  VQGEN_FROM_MEMORY = 2, /* this runtime had it: no disk, compiler or driver was used */
  VQGEN_BASELINE = 3     /* the plain plan, for now (VQGEN_FALLBACK) */
} vqgen_provenance;

/* Prepares an op from a config (docs/reference/config.md), JSON whose `tokens`, `rows` or `m` are
 * the largest that will come. Files of access counts and formats in it are relative to the working
 * folder and are read again for each new text. Two configs of the same problem and plan are one op;
 * concurrent calls compile it once. The caller owns the handle *op and ends it by
 * vqgen_op_release().
 *
 * Do not call it while this thread captures a stream: loading a kernel breaks the capture. If
 * `stream` (a CUstream, may be null) is being captured, an op that this runtime does not have yet
 * is VQGEN_CAPTURING. Other errors: VQGEN_BAD_INPUT, VQGEN_INFEASIBLE, VQGEN_DEVICE, VQGEN_MISS. */
VQGEN_API vqgen_status vqgen_prepare(vqgen_runtime* runtime, const char* config, void* stream,
                                     vqgen_op** op);
/* vqgen_prepare() from a config file, which is read each time. */
VQGEN_API vqgen_status vqgen_prepare_file(vqgen_runtime* runtime, const char* path, void* stream,
                                          vqgen_op** op);

/* Prepares `count` configs, `threads` at a time (1..256), and keeps their ops in the runtime. All
 * are tried; returns the status of the first in the list that failed. */
VQGEN_API vqgen_status vqgen_prefetch(vqgen_runtime* runtime, const char* const* configs,
                                      size_t count, int32_t threads);

/* From now on an op that this runtime does not have yet is VQGEN_MISS. It cannot be undone. */
VQGEN_API void vqgen_freeze(vqgen_runtime* runtime);

/* Lists the plans that launches with `least` to `most` tokens or rows can reach, as a JSON array of
 * {"most", "plan"}, without compiling. The caller frees *json by vqgen_text_free(). */
VQGEN_API vqgen_status vqgen_enumerate(vqgen_runtime* runtime, const char* config, int64_t least,
                                       int64_t most, char** json);

/* Frees a text that this library returned through a char**. Null is allowed. */
VQGEN_API void vqgen_text_free(char* text);

/* Releases a handle. The op's kernels stay loaded as long as its runtime or any of its handles; a
 * graph with its launches needs one of them. Synchronize all launches before the last is released,
 * as running kernels would lose their code. Null is allowed. */
VQGEN_API void vqgen_op_release(vqgen_op* op);

/* Returns where the op of this handle came from. */
VQGEN_API vqgen_provenance vqgen_op_provenance(const vqgen_op* op);

/* Does nothing and returns VQGEN_OK for any arguments: a workspace needs no initialisation. Kept
 * for programs that call it. */
VQGEN_API vqgen_status vqgen_workspace_init(vqgen_runtime* runtime, void* workspace,
                                            size_t workspace_bytes, void* stream);

/* Returns the bytes of device memory, 16-byte aligned, that suffice as workspace for any launch of
 * the op; 0 if it needs none. A launch reads nothing there that it has not written: the memory may
 * hold anything, and ops may share it as long as their launches do not overlap. */
VQGEN_API size_t vqgen_op_workspace_bytes(const vqgen_op* op);

/* Returns the workspace bytes of a launch with `count` tokens or rows; 0 if none is needed or the
 * op cannot do so many. */
VQGEN_API size_t vqgen_op_workspace_bytes_for(const vqgen_op* op, int64_t count);

/* Returns the tokens or rows that the kernel of a launch with `count` of them was made for; 0 if
 * the op cannot do so many. */
VQGEN_API int64_t vqgen_op_bucket(const vqgen_op* op, int64_t count);

/* Returns JSON with the problem, the arguments and their shapes, and each bucket's plan with its
 * origin, kernels and registers; also "cache_warning" if the cache failed, "tuned_warning" if a
 * tuned table is damaged, and "failed" with the error of a plan that did not compile. The text
 * lives as long as the handle. */
VQGEN_API const char* vqgen_op_description(const vqgen_op* op);

/* Layout of packed codes, a part of a config's format ("layout"): rows are stored in groups of
 * `rows`, and a group as a run of `words` 32-bit words of each of its rows, then the next run of
 * each, and so on. Valid are 1, 2 or 4 of each, at most 4 in all, and {32, 1} for wide sub-vectors
 * in a cache; {1, 1} is row after row. Rows are padded to whole groups, per head of each sequence,
 * and words to whole runs; kernels may read the padding and ignore its values. */
typedef struct vqgen_layout {
  int32_t rows, words;
} vqgen_layout;

/* Returns the 32-bit words, padding included, of the codes of `heads` heads (batch x kv_heads of a
 * cache, 1 for weights) of `rows` rows; row_words is ceil(columns / vector_size x num_codebooks x
 * index_bits / 32). 0 for an invalid layout, a size below 1, or more words than memory can have. */
VQGEN_API int64_t vqgen_layout_words(vqgen_layout layout, int64_t heads, int64_t rows,
                                     int64_t row_words);

/* Copies codes in host memory from one layout to another, as when weights are loaded. `from_words`
 * and `to_words` must be vqgen_layout_words() of each; all of `to` is written, padding as zeros,
 * and the two must not overlap. Needs no runtime. VQGEN_BAD_INPUT for other sizes or layouts. */
VQGEN_API vqgen_status vqgen_repack(const uint32_t* from, vqgen_layout from_layout,
                                    int64_t from_words, uint32_t* to, vqgen_layout to_layout,
                                    int64_t to_words, int64_t heads, int64_t rows,
                                    int64_t row_words);

/* Returns all fields of a format (docs/reference/config.md) as JSON; `format` is a preset's name, a
 * format file, or JSON of fields. The caller frees *json by vqgen_text_free(). VQGEN_BAD_INPUT for
 * an unknown or malformed format. */
VQGEN_API vqgen_status vqgen_format_fields(const char* format, char** json);

typedef enum vqgen_element { VQGEN_F16 = 0, VQGEN_BF16 = 1 } vqgen_element;

/* Returns the tensors of a quantized linear layer as a model folder and vqgen_linear_args have
 * them, as JSON: {"tensors": {"codes": ["I32", [rows, words]], ...}, "refused": why no kernel reads
 * them, or
 * ""}. `element` is a vqgen_element. The caller frees *json by vqgen_text_free(). VQGEN_BAD_INPUT
 * for a format that is not of weights, and for sizes that it does not divide. */
VQGEN_API vqgen_status vqgen_weight_tensors(const char* format, int32_t element,
                                            int64_t out_features, int64_t in_features, char** json);
/* Returns the table of the E8P lattice, 256 vectors of 8 numbers, which is the codebook of each
 * stage of a format with decoder "e8p". */
VQGEN_API const float* vqgen_e8p_table(void);

/* A rotation of rows around rotated weights: y = signs o H x if `back`, else H^T (signs o x), with
 * the matrices of docs/reference/file-formats.md#model-folder. */
typedef struct vqgen_rotator vqgen_rotator;

/* Compiles and loads the rotation of rows of so many features. `element` is a vqgen_element, of x
 * and y. `stream`, if not null, is judged: VQGEN_CAPTURING while it is captured. VQGEN_INFEASIBLE
 * for sizes that no matrix rotates. Release the rotator before the runtime is destroyed. */
VQGEN_API vqgen_status vqgen_rotator_create(vqgen_runtime* runtime, int32_t element,
                                            int64_t features, int32_t back, void* stream,
                                            vqgen_rotator** rotator);
/* Releases a rotator, or nothing if it is null; none of its launches may be in flight. */
VQGEN_API void vqgen_rotator_release(vqgen_rotator* rotator);
/* Rotates rows of x to y on the stream, which may be captured: x and y are [rows][features],
 * aligned to 8 bytes, signs is [features], aligned to 16, and y is not x. */
VQGEN_API vqgen_status vqgen_rotate(const vqgen_rotator* rotator, const void* x, const float* signs,
                                    void* y, int64_t rows, void* stream);

/* Arguments of vqgen_train_codebooks(). Set struct_bytes to the size of the struct, unused fields
 * to zero. All memory is the caller's. */
typedef struct vqgen_training_args {
  size_t struct_bytes;
  const char* format; /* as for vqgen_format_fields(); its decoder must be table */
  int32_t element;    /* vqgen_element of the codebooks */
  int32_t iterations; /* most k-means iterations; 0: 30 */
  uint64_t seed;
  /* A unit is what one codebook set serves; the format's scope is ignored. It has `rows` rows of
   * `columns` numbers, a multiple of the format's vector_size. */
  int64_t units, rows, columns;
  /* [units][rows][columns], only read, in the quantized domain: formats with smooth, hadamard or
   * output_scales are refused. If the format is a file, which may change in between, pass the JSON
   * of vqgen_format_fields() and size the memory below by it. */
  const float* vectors;
  void* codebooks;     /* host memory, written: [units][stages][entries][vector_size] */
  float* stage_scales; /* host memory, written: [units][stages]; null without stage_scales */
} vqgen_training_args;

/* Trains codebooks by k-means (docs/guides/quantize.md) on all vectors, stage after stage, and
 * returns when they are there. With a runtime, `vectors` is memory of its device and is trained
 * there: vector_size 2, 4, 8 or 16, fewer than 2^32 sub-vectors, and as much memory again if there
 * are several stages; the call waits for the default stream first, and trainings of one runtime run
 * one at a time. Without a runtime (null), `vectors` is host memory, and all cores train. Equal
 * vectors and seeds give equal bits on one machine. VQGEN_BAD_INPUT for NaN, infinity, magnitudes
 * beyond 2^60, invalid sizes, and fewer sub-vectors than entries; VQGEN_INFEASIBLE for formats that
 * cannot be trained so. */
VQGEN_API vqgen_status vqgen_train_codebooks(vqgen_runtime* runtime,
                                             const vqgen_training_args* args);

/* A bundle that `vqgen quantize` or vqgen.hf.calibrate() wrote, in host memory. It does not change,
 * so that any threads may read it. */
typedef struct vqgen_bundle vqgen_bundle;

/* Reads a bundle whole, and judges all that is in it. vqgen_bundle_release() frees it.
 * VQGEN_BAD_INPUT for a file that cannot be read or is of a newer vqgen. */
VQGEN_API vqgen_status vqgen_bundle_open(const char* path, vqgen_bundle** bundle);
VQGEN_API void vqgen_bundle_release(vqgen_bundle* bundle);

/* Returns JSON with what configs take of each item, in the order of the file: [{"name": "layer0",
 * "kind": "attention", "dtype", "kv_heads", "head_dim", "tokens", "keys": FORMAT, "values":
 * FORMAT}], and of weights {"kind": "weights", "dtype", "out_features", "in_features", "weights":
 * FORMAT}. The text lives as long as the bundle. */
VQGEN_API const char* vqgen_bundle_description(const vqgen_bundle* bundle);

/* Finds what an op ("attention_decode", "kv_append", "kv_dequantize", "gemv", "gemm") takes of an
 * item as `argument`, by the names of vqgen_arguments(): "keys.codebooks", "key_rotation". Its
 * elements are those of the op's description; they live as long as the bundle. NULL and 0 bytes if
 * the item has none, as codes of a calibrated cache. Keys with a gain have other codebooks or
 * scales for kv_append than for the ops that read. VQGEN_BAD_INPUT for an unknown item, op or
 * argument. */
VQGEN_API vqgen_status vqgen_bundle_tensor(const vqgen_bundle* bundle, const char* item,
                                           const char* op, const char* argument, const void** data,
                                           size_t* bytes);

/* Allocates device memory for tests and small programs, 256-byte aligned; the caller frees it by
 * vqgen_free() before the runtime is destroyed. On the host backend kernels may touch no other
 * memory but what vqgen_register_host_memory() has registered. Copies return when they are done but
 * are not ordered with any stream: synchronize a launch before you copy its results or overwrite
 * its arguments. */
VQGEN_API vqgen_status vqgen_alloc(vqgen_runtime* runtime, size_t bytes, void** pointer);
VQGEN_API void vqgen_free(vqgen_runtime* runtime, void* pointer);
VQGEN_API vqgen_status vqgen_upload(vqgen_runtime* runtime, void* device, const void* host,
                                    size_t bytes);
VQGEN_API vqgen_status vqgen_download(vqgen_runtime* runtime, void* host, const void* device,
                                      size_t bytes);

/* Registers memory of the caller's that kernels of the host backend may touch, until the call below
 * with the same bytes; each call here needs one there. It may overlap with other memory. On a
 * device both do nothing: kernels touch what the device reaches. */
VQGEN_API vqgen_status vqgen_register_host_memory(vqgen_runtime* runtime, const void* memory,
                                                  size_t bytes);
VQGEN_API void vqgen_unregister_host_memory(vqgen_runtime* runtime, const void* memory,
                                            size_t bytes);

/* Waits for all work on the stream (a CUstream; null is the default stream). VQGEN_DEVICE if it
 * failed. */
VQGEN_API vqgen_status vqgen_synchronize(vqgen_runtime* runtime, void* stream);

#ifdef __cplusplus
}
#endif

#include <vqgen/launch.h>
#endif

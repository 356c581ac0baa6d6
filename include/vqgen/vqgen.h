/* vqgen for programs that run its kernels: a config becomes an op, once; an op is launched on the
 * caller's stream, with the caller's memory, as often as wanted. Plain C11. docs/guides/embedding.md tells
 * how to use it.
 *
 * All functions may be called from any thread at once. Those that can fail return a status, and
 * vqgen_last_error() then has one line that names what failed and the remedy. Handles are opaque.
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
  VQGEN_BAD_INPUT = 2,  /* a config, option or argument that is malformed or missing */
  VQGEN_INFEASIBLE = 3, /* well formed, but no kernel can do it */
  VQGEN_DEVICE = 5,     /* compiler, driver or device missing or failed */
  VQGEN_MISS = 6,       /* not prepared, and policy or vqgen_freeze() forbids to compile */
  VQGEN_CAPTURING = 7,  /* not prepared, and the stream is being captured */
  VQGEN_WORKSPACE = 8,  /* the workspace is too small or not aligned */
  VQGEN_ALIGNMENT = 9,  /* a pointer or stride is less aligned than the kernel needs */
  VQGEN_RANGE = 10,     /* tokens or rows beyond what the op was prepared for */
  VQGEN_INTERNAL = 11   /* out of memory, or a fault of vqgen itself */
} vqgen_status;

/* "bad_input" and so on; "unknown" for what is no status. */
VQGEN_API const char* vqgen_status_name(vqgen_status status);

/* Why the last call on this thread that failed did; "" where none has. Lives until the next
 * failure on this thread. */
VQGEN_API const char* vqgen_last_error(void);

/* "0.1.0", of the library that runs. */
VQGEN_API const char* vqgen_version(void);

typedef enum vqgen_backend {
  VQGEN_CUDA = 0, /* a GPU, through the driver */
  VQGEN_HOST = 1  /* the CPU, for tests: slow, and judges every access of a kernel */
} vqgen_backend;

/* What prepare does where a kernel is neither in memory nor in the cache on disk. */
typedef enum vqgen_miss_policy {
  VQGEN_COMPILE = 0, /* compiles it, which takes a second or so */
  VQGEN_FAIL = 1,    /* VQGEN_MISS */
  /* Prepares the plain plan that can do every problem (dataflow lanes, by the rules), compiled if
   * need be, and compiles the wanted plan in the background; launches take that once it is there.
   */
  VQGEN_FALLBACK = 2
} vqgen_miss_policy;

#define VQGEN_CURRENT_CONTEXT (-1)

/* Start from vqgen_options_init(), which sets struct_bytes and the defaults. Strings are copied;
 * null means the default. */
typedef struct vqgen_options {
  size_t struct_bytes;
  int32_t backend; /* vqgen_backend; VQGEN_CUDA */
  /* CUDA: the device's number, whose primary context is used, or VQGEN_CURRENT_CONTEXT for the
   * context that is current on the calling thread, which must outlive the runtime and its ops. 0 */
  int32_t device;
  int32_t miss;        /* vqgen_miss_policy; VQGEN_COMPILE */
  int32_t max_buckets; /* kernels an op at most, 1..32; 16 */
  int32_t threads;     /* that compile the buckets of one op, 1..256; 1 */
  /* Folder of compiled kernels. Null: VQGEN_CACHE_DIR, XDG_CACHE_HOME/vqgen, HOME/.cache/vqgen, or
   * a private one of temporary files. "": none is written. VQGEN_CACHE_PATH, which is only read,
   * and VQGEN_CACHE_MAX_BYTES count in any case. */
  const char* cache_dir;
  const char* nvrtc;    /* libnvrtc or its folder; null: VQGEN_NVRTC, or the usual places */
  const char* compiler; /* of the host backend; null: VQGEN_CXX, or g++ */
  /* 1: from sm_90 on, kernels are placed while what is before them on the stream ends, if that
   * lets them (programmatic dependent launch), and wait for its end. 0: not. -1:
   * VQGEN_DEPENDENT_LAUNCHES, or 1. */
  int32_t dependent_launches;
} vqgen_options;

VQGEN_API void vqgen_options_init(vqgen_options* options);

typedef struct vqgen_runtime vqgen_runtime;
typedef struct vqgen_op vqgen_op;

/* One device and one context of it. Reads the environment here and nowhere else. Null options are
 * the defaults. */
VQGEN_API vqgen_status vqgen_runtime_create(const vqgen_options* options, vqgen_runtime** runtime);

/* Lets go of all ops that it prepared, which it keeps until then; those with a handle live on.
 * Launches of the others must be done: synchronize before. Waits for the kernel that is compiled in
 * the background: under VQGEN_FALLBACK a program must not end, or unload the library, without
 * this. Null is fine. */
VQGEN_API void vqgen_runtime_destroy(vqgen_runtime* runtime);

/* Makes the runtime's CUDA context current for this thread, as launches need it; for threads that
 * did not get one from CUDA itself. Does nothing on the host. */
VQGEN_API vqgen_status vqgen_make_current(vqgen_runtime* runtime);

typedef enum vqgen_provenance {
  VQGEN_COMPILED = 0,    /* by this call */
  VQGEN_FROM_DISK = 1,   /* all kernels of it from the cache */
  VQGEN_FROM_MEMORY = 2, /* this runtime had it: no disk, no compiler, no driver was asked */
  VQGEN_BASELINE = 3     /* the plain plan, for now (VQGEN_FALLBACK) */
} vqgen_provenance;

/* An op from a config (docs/reference/config.md), with `tokens` or `rows` as the largest that will come. The
 * text is JSON; access_counts and format files in it are looked for from the working folder, and
 * read when the text is new. Two configs of the same problem and plan are one op; concurrent calls
 * compile it once.
 *
 * Never call this while the calling thread captures a stream: loading a kernel breaks the capture.
 * Where `stream` (a CUstream, may be null) is named and is being captured, an op that this runtime
 * does not have yet is VQGEN_CAPTURING. */
VQGEN_API vqgen_status vqgen_prepare(vqgen_runtime* runtime, const char* config, void* stream,
                                     vqgen_op** op);
/* The same of a config file, read each time. */
VQGEN_API vqgen_status vqgen_prepare_file(vqgen_runtime* runtime, const char* path, void* stream,
                                          vqgen_op** op);

/* Prepares all configs, `threads` at a time (1..256), and keeps them. All are tried; the status is
 * that of the first in the list that failed. */
VQGEN_API vqgen_status vqgen_prefetch(vqgen_runtime* runtime, const char* const* configs,
                                      size_t count, int32_t threads);

/* From now on an op that this runtime does not have yet is VQGEN_MISS. Not undone. */
VQGEN_API void vqgen_freeze(vqgen_runtime* runtime);

/* The plans that launches with `least` to `most` tokens or rows can reach, as a JSON array of
 * {"most", "plan"}; plans only, nothing is compiled. Free with vqgen_text_free(). */
VQGEN_API vqgen_status vqgen_enumerate(vqgen_runtime* runtime, const char* config, int64_t least,
                                       int64_t most, char** json);
VQGEN_API void vqgen_text_free(char* text);

/* The op's kernels stay loaded as long as the runtime or any handle of the op lives; a graph that
 * holds launches needs one of them. Synchronize all launches before the last of them goes: what
 * still runs would lose its code. Null is fine. */
VQGEN_API void vqgen_op_release(vqgen_op* op);

/* How this handle came about. */
VQGEN_API vqgen_provenance vqgen_op_provenance(const vqgen_op* op);

/* Does nothing, whatever it is given, and returns VQGEN_OK: a workspace needs no initialisation.
 * For programs that call it. */
VQGEN_API vqgen_status vqgen_workspace_init(vqgen_runtime* runtime, void* workspace,
                                            size_t workspace_bytes, void* stream);

/* Bytes of device memory that any launch may be given as workspace; 0 where none is needed. A
 * launch reads nothing there that it has not written: the memory may hold anything, and ops may
 * take turns with it. */
VQGEN_API size_t vqgen_op_workspace_bytes(const vqgen_op* op);

/* Bytes that one launch with this many tokens or rows needs; 0 where the op cannot do so many. */
VQGEN_API size_t vqgen_op_workspace_bytes_for(const vqgen_op* op, int64_t count);

/* The tokens or rows that the kernel of a launch with `count` of them was made for; 0 where there
 * is none for as many. */
VQGEN_API int64_t vqgen_op_bucket(const vqgen_op* op, int64_t count);

/* JSON: problem, arguments with their shapes, and each bucket's plan and where that comes from,
 * kernels, registers and origin; "cache_warning" where the cache did not work as it should,
 * "tuned_warning" where a tuned table is damaged, "failed" with the line of a wanted plan that did
 * not compile. Lives as long as the handle. */
VQGEN_API const char* vqgen_op_description(const vqgen_op* op);

/* How rows of packed codes are stored: in groups of `rows` rows, and of each row of a group in turn
 * a run of `words` 32-bit words, the next run of each, and so on. 1, 2 or 4 of each, 4 in all at
 * most, or {32, 1} of wide sub-vectors in a cache; {1, 1} is plain: row after row. Part of a
 * config's format ("layout"), since it is one of the data. Rows are padded to whole groups, in each
 * head of each sequence, and words to whole runs; the padding is memory that kernels may read, and
 * means nothing. */
typedef struct vqgen_layout {
  int32_t rows, words;
} vqgen_layout;

/* Words that the codes of `heads` heads (batch x kv_heads of a cache, 1 of weights) of `rows` rows
 * take, padding included; the words of a row are ceil(columns / vector_size x residuals x
 * index_bits / 32). 0 for a layout that there is not, a size below 1, or more than any memory has.
 */
VQGEN_API int64_t vqgen_layout_words(vqgen_layout layout, int64_t heads, int64_t rows,
                                     int64_t row_words);

/* Codes in host memory from one layout into another, as when weights are loaded. `from_words` and
 * `to_words` are vqgen_layout_words() of either; all of `to` is written, padding as zeros, and the
 * two do not overlap. Needs no runtime. */
VQGEN_API vqgen_status vqgen_repack(const uint32_t* from, vqgen_layout from_layout,
                                    int64_t from_words, uint32_t* to, vqgen_layout to_layout,
                                    int64_t to_words, int64_t heads, int64_t rows,
                                    int64_t row_words);

/* All fields of a format (docs/reference/config.md), as JSON; `format` is a preset's name, a format file, or
 * JSON of fields. Free with vqgen_text_free(). */
VQGEN_API vqgen_status vqgen_format_fields(const char* format, char** json);

typedef enum vqgen_element { VQGEN_F16 = 0, VQGEN_BF16 = 1 } vqgen_element;

/* What codebooks are trained on, and where they go. Set struct_bytes to the size of the struct and
 * zero what is not used. */
typedef struct vqgen_training_args {
  size_t struct_bytes;
  const char* format; /* as of vqgen_format_fields(); its decoder is table */
  int32_t element;    /* vqgen_element, of the codebooks */
  int32_t iterations; /* of k-means at most; 0: 30 */
  uint64_t seed;
  /* What one codebook serves is a unit; the format's scope is not asked. A row of a unit is
   * `columns` numbers, a multiple of the format's vector_size. */
  int64_t units, rows, columns;
  /* [units][rows][columns]; only read. They are in the domain that is quantized: a
   * format with smooth, hadamard or output_scales is refused. If the format is a file, size the
   * memory below by vqgen_format_fields(), and give its JSON: the file may change in between. */
  const float* vectors;
  void* codebooks;     /* host memory, written: [units][stages][entries][vector_size] */
  float* stage_scales; /* host memory, written: [units][stages]; null without stage_scales */
} vqgen_training_args;

/* Trains codebooks by k-means (docs/guides/quantize.md), on all vectors, stage after stage, and returns
 * when they are there. With a runtime, `vectors` is memory of its device, trained there:
 * vector_size 2, 4, 8 or 16, fewer than 2^32 sub-vectors, and as much memory again with several
 * stages; it waits for the default stream first, and trainings of one runtime take turns. Without
 * one (null), `vectors` is host memory, and all cores train. The same vectors and seed give the
 * same bits on one machine. VQGEN_BAD_INPUT for NaN, infinity, magnitudes beyond 2^60, sizes that
 * are none, and fewer sub-vectors than entries; VQGEN_INFEASIBLE for what is not trained so. */
VQGEN_API vqgen_status vqgen_train_codebooks(vqgen_runtime* runtime,
                                             const vqgen_training_args* args);

/* Device memory for tests and small programs, 256-byte aligned. On the host backend kernels may
 * touch no other, but for what vqgen_register_host_memory() was told of. Copies wait until they are
 * done, but are ordered with no stream: synchronize a launch before its results are copied or its
 * arguments overwritten. */
VQGEN_API vqgen_status vqgen_alloc(vqgen_runtime* runtime, size_t bytes, void** pointer);
VQGEN_API void vqgen_free(vqgen_runtime* runtime, void* pointer);
VQGEN_API vqgen_status vqgen_upload(vqgen_runtime* runtime, void* device, const void* host,
                                    size_t bytes);
VQGEN_API vqgen_status vqgen_download(vqgen_runtime* runtime, void* host, const void* device,
                                      size_t bytes);

/* Memory of the caller's that kernels of the host backend may touch too, from `lend` to a
 * `give_back` of the same bytes; each lend needs its own. It may overlap with other memory. On a
 * device this does nothing: kernels touch what the device reaches. */
VQGEN_API vqgen_status vqgen_register_host_memory(vqgen_runtime* runtime, const void* memory,
                                                  size_t bytes);
VQGEN_API void vqgen_unregister_host_memory(vqgen_runtime* runtime, const void* memory,
                                            size_t bytes);

/* Waits for all work on the stream. */
VQGEN_API vqgen_status vqgen_synchronize(vqgen_runtime* runtime, void* stream);

#ifdef __cplusplus
}
#endif

#include <vqgen/launch.h>
#endif

/* Attention through the C interface of libvqgen: prepared once, launched at two lengths, checked
 * against a plain loop. "attention --backend host" needs no GPU; with --graph the launches are
 * captured into CUDA graphs, and these replayed twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vqgen/vqgen.h>

#include "attention_data.h"
#include "capture.h"

static void require(vqgen_status status) {
  if (status == VQGEN_OK) return;
  fprintf(stderr, "attention: %s: %s\n", vqgen_status_name(status), vqgen_last_error());
  exit(1);
}

static void* on_device(vqgen_runtime* runtime, const void* host, size_t bytes) {
  void* device = NULL;
  require(vqgen_alloc(runtime, bytes, &device));
  if (host != NULL) require(vqgen_upload(runtime, device, host, bytes));
  return device;
}

static void require_driver(int result) {
  if (result == 0) return;
  fprintf(stderr, "attention: device: the driver refused a graph with %d\n", result);
  exit(1);
}

/* Launches, or captures the launch and replays that, and waits for it. */
static void launch(vqgen_runtime* runtime, vqgen_op* op, const vqgen_attention_args* args,
                   void* workspace, size_t bytes, int graph) {
  static uint16_t poison[kOutputs];
  Capture capture;
  if (!graph) {
    void* stream = NULL; /* the default stream; a CUstream of your own goes here */
    require(vqgen_attention_launch(op, args, workspace, bytes, stream));
    require(vqgen_synchronize(runtime, stream));
    return;
  }
  memset(poison, 0xff, sizeof(poison)); /* no number: only a replay can make it right */
  require_driver(capture_begin(&capture));
  require(vqgen_attention_launch(op, args, workspace, bytes, capture.stream));
  require_driver(capture_end(&capture));
  for (int replay = 0; replay < 2; ++replay) {
    require(vqgen_upload(runtime, args->out, poison, sizeof(poison)));
    require_driver(capture_replay(&capture));
    require(vqgen_synchronize(runtime, capture.stream));
  }
  capture_destroy(&capture);
}

/* One launch with sequences of at most `tokens`. 0 where the result is right. */
static int run(vqgen_runtime* runtime, vqgen_op* op, int tokens, int graph) {
  static AttentionData data;
  static double plain[kOutputs];
  static uint16_t result[kOutputs];
  make_data(&data, tokens);
  plain_attention(&data, plain);

  const int64_t head_stride = (int64_t)kTokens * kRowWords;
  vqgen_attention_args args = {0};
  args.struct_bytes = sizeof(args);
  args.tokens = tokens;
  args.query = on_device(runtime, data.query, sizeof(data.query));
  args.out = on_device(runtime, NULL, sizeof(result));
  args.lse = on_device(runtime, NULL, kQueries * sizeof(float));
  args.keys.codes = on_device(runtime, data.key_codes, sizeof(data.key_codes));
  args.keys.codebooks = on_device(runtime, data.key_book, sizeof(data.key_book));
  args.keys.head_stride = head_stride;
  args.keys.batch_stride = kKvHeads * head_stride;
  args.values.codes = on_device(runtime, data.value_codes, sizeof(data.value_codes));
  args.values.codebooks = on_device(runtime, data.value_book, sizeof(data.value_book));
  args.values.head_stride = head_stride;
  args.values.batch_stride = kKvHeads * head_stride;
  args.lengths = on_device(runtime, data.lengths, sizeof(data.lengths));
  const size_t bytes = vqgen_op_workspace_bytes(op);
  void* workspace = on_device(runtime, NULL, bytes);

  launch(runtime, op, &args, workspace, bytes, graph);
  require(vqgen_download(runtime, result, args.out, sizeof(result)));

  const void* const all[] = {args.query,
                             args.out,
                             args.lse,
                             args.keys.codes,
                             args.keys.codebooks,
                             args.values.codes,
                             args.values.codebooks,
                             args.lengths,
                             workspace};
  for (size_t i = 0; i < sizeof(all) / sizeof(*all); ++i) vqgen_free(runtime, (void*)all[i]);

  const double error = relative_error(plain, result);
  const int wrong = !(error < 1e-3);
  printf("%d tokens%s: relative error %.1e, %s\n", tokens, graph ? ", by a graph" : "", error,
         wrong ? "WRONG" : "ok");
  return wrong;
}

int main(int argc, char** argv) {
  vqgen_options options;
  int graph = 0;
  vqgen_options_init(&options);
  for (int i = 1; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--graph") == 0) {
      graph = 1;
    } else if (strcmp(argv[i], "--backend") == 0 &&
               (strcmp(value, "host") == 0 || strcmp(value, "cuda") == 0)) {
      options.backend = strcmp(value, "host") == 0 ? VQGEN_HOST : VQGEN_CUDA;
      ++i;
    } else {
      fprintf(stderr, "usage: attention [--backend host|cuda] [--graph]\n");
      return 2;
    }
  }
  if (graph && options.backend == VQGEN_HOST) {
    fprintf(stderr, "attention: --graph is CUDA's; leave out --backend host\n");
    return 2;
  }
  vqgen_runtime* runtime = NULL;
  require(vqgen_runtime_create(&options, &runtime));
  require(vqgen_make_current(runtime));
  vqgen_op* op = NULL;
  require(vqgen_prepare(runtime, kConfig, NULL, &op));
  printf("libvqgen %s: workspace %zu bytes\n", vqgen_version(), vqgen_op_workspace_bytes(op));
  int wrong = run(runtime, op, kTokens, graph);
  wrong |= run(runtime, op, 77, graph);
  vqgen_op_release(op);
  vqgen_runtime_destroy(runtime);
  return wrong;
}

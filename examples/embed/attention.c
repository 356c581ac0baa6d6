/* Attention through the C interface of libvqgen: prepared once, launched at two lengths, checked
 * against a plain loop. "attention --backend host" needs no GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vqgen/vqgen.h>

#include "attention_data.h"

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

/* One launch with sequences of at most `tokens`. 0 where the result is right. */
static int run(vqgen_runtime* runtime, vqgen_op* op, int tokens) {
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

  void* stream = NULL; /* the default stream; a CUstream of your own goes here */
  require(vqgen_attention_launch(op, &args, workspace, bytes, stream));
  require(vqgen_synchronize(runtime, stream));
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
  printf("%d tokens: relative error %.1e, %s\n", tokens, error, wrong ? "WRONG" : "ok");
  return wrong;
}

int main(int argc, char** argv) {
  vqgen_options options;
  vqgen_options_init(&options);
  if (argc == 3 && strcmp(argv[1], "--backend") == 0 && strcmp(argv[2], "host") == 0) {
    options.backend = VQGEN_HOST;
  } else if (argc != 1 && !(argc == 3 && strcmp(argv[2], "cuda") == 0)) {
    fprintf(stderr, "usage: attention [--backend host|cuda]\n");
    return 2;
  }
  vqgen_runtime* runtime = NULL;
  require(vqgen_runtime_create(&options, &runtime));
  require(vqgen_make_current(runtime));
  vqgen_op* op = NULL;
  require(vqgen_prepare(runtime, kConfig, NULL, &op));
  printf("libvqgen %s: workspace %zu bytes\n", vqgen_version(), vqgen_op_workspace_bytes(op));
  int wrong = run(runtime, op, kTokens);
  wrong |= run(runtime, op, 77);
  vqgen_op_release(op);
  vqgen_runtime_destroy(runtime);
  return wrong;
}

// Attention through the C++ interface of libvqgen: prepared once, launched at two lengths, checked
// against a plain loop. "attention_cpp --backend host" needs no GPU; with --graph the launches are
// captured into CUDA graphs, and these replayed twice.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <vqgen/vqgen.hpp>

#include "attention_data.h"
#include "capture.h"

namespace {

void require_driver(int result) {
  if (result != 0) {
    throw vqgen::StatusError(VQGEN_DEVICE,
                             ("the driver refused a graph with " + std::to_string(result)).c_str());
  }
}

// Launches, and waits for it.
void launch(const vqgen::Runtime& runtime, const vqgen::Op& op, const vqgen_attention_args& args,
            void* workspace) {
  void* stream = nullptr;  // the default stream; a CUstream of your own goes here
  op.launch(args, workspace, op.workspace_bytes(), stream);
  runtime.synchronize(stream);
}

// Captures the launch and replays that, and waits for it.
void launch_by_graph(const vqgen::Runtime& runtime, const vqgen::Op& op,
                     const vqgen_attention_args& args, void* workspace) {
  Capture capture;
  require_driver(capture_begin(&capture));
  op.launch(args, workspace, op.workspace_bytes(), capture.stream);
  require_driver(capture_end(&capture));
  // Not a number: only a replay can make it right.
  const std::vector<std::uint16_t> poison(kOutputs, 0xffff);
  for (int replay = 0; replay < 2; ++replay) {
    vqgen::require(vqgen_upload(runtime.get(), args.out, poison.data(), kOutputs * 2));
    require_driver(capture_replay(&capture));
    runtime.synchronize(capture.stream);
  }
  capture_destroy(&capture);
}

// One launch with sequences of at most `tokens`; whether the result is right.
bool run(const vqgen::Runtime& runtime, const vqgen::Op& op, int tokens, bool graph) {
  const auto data = std::make_unique<AttentionData>();
  make_data(data.get(), tokens);
  std::vector<double> plain(kOutputs);
  plain_attention(data.get(), plain.data());

  using vqgen::DeviceArray;
  const DeviceArray<std::uint16_t> query(runtime, std::span<const std::uint16_t>(data->query));
  const DeviceArray<std::uint32_t> key_codes(runtime,
                                             std::span<const std::uint32_t>(data->key_codes));
  const DeviceArray<std::uint16_t> key_book(runtime,
                                            std::span<const std::uint16_t>(data->key_book));
  const DeviceArray<std::uint32_t> value_codes(runtime,
                                               std::span<const std::uint32_t>(data->value_codes));
  const DeviceArray<std::uint16_t> value_book(runtime,
                                              std::span<const std::uint16_t>(data->value_book));
  const DeviceArray<std::int32_t> lengths(runtime, std::span<const std::int32_t>(data->lengths));
  const DeviceArray<std::uint16_t> out(runtime, kOutputs);
  const DeviceArray<float> lse(runtime, kQueries);
  const DeviceArray<std::byte> workspace(runtime, op.workspace_bytes());

  const std::int64_t head_stride = std::int64_t{kTokens} * kRowWords;
  vqgen_attention_args args{};
  args.tokens = tokens;
  args.query = query.data();
  args.out = out.data();
  args.lse = lse.data();
  args.keys = {key_codes.data(), key_book.data(), nullptr, kKvHeads * head_stride, head_stride};
  args.values = {value_codes.data(), value_book.data(), nullptr, kKvHeads * head_stride,
                 head_stride};
  args.lengths = lengths.data();

  (graph ? launch_by_graph : launch)(runtime, op, args, workspace.data());

  const double error = relative_error(plain.data(), out.fetch().data());
  const bool right = error < 1e-3;
  std::printf("%d tokens%s: relative error %.1e, %s\n", tokens, graph ? ", by a graph" : "", error,
              right ? "ok" : "WRONG");
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  vqgen_options options = vqgen::default_options();
  bool graph = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view value = i + 1 < words.size() ? words[i + 1] : "";
    if (words[i] == "--graph") {
      graph = true;
    } else if (words[i] == "--backend" && (value == "host" || value == "cuda")) {
      options.backend = value == "host" ? VQGEN_HOST : VQGEN_CUDA;
      ++i;
    } else {
      std::fprintf(stderr, "usage: attention_cpp [--backend host|cuda] [--graph]\n");
      return 2;
    }
  }
  if (graph && options.backend == VQGEN_HOST) {
    std::fprintf(stderr, "attention_cpp: --graph is CUDA's; leave out --backend host\n");
    return 2;
  }
  try {
    const vqgen::Runtime runtime(options);
    runtime.make_current();
    const vqgen::Op op = runtime.prepare(kConfig);
    std::printf("libvqgen %s: workspace %zu bytes\n", vqgen_version(), op.workspace_bytes());
    const bool all = run(runtime, op, kTokens, graph);
    return run(runtime, op, 77, graph) && all ? 0 : 1;
  } catch (const vqgen::StatusError& error) {
    std::fprintf(stderr, "attention_cpp: %s: %s\n", vqgen_status_name(error.status()),
                 error.what());
    return 1;
  }
}

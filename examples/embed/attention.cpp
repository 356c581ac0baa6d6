// Attention through the C++ interface of libvqgen: prepared once, launched at two lengths, checked
// against a plain loop. "attention_cpp --backend host" needs no GPU.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <vqgen/vqgen.hpp>

#include "attention_data.h"

namespace {

// One launch with sequences of at most `tokens`; whether the result is right.
bool run(const vqgen::Runtime& runtime, const vqgen::Op& op, int tokens) {
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

  void* stream = nullptr;  // the default stream; a CUstream of your own goes here
  op.launch(args, workspace.data(), op.workspace_bytes(), stream);
  runtime.synchronize(stream);

  const double error = relative_error(plain.data(), out.fetch().data());
  const bool right = error < 1e-3;
  std::printf("%d tokens: relative error %.1e, %s\n", tokens, error, right ? "ok" : "WRONG");
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool named =
      words.size() == 2 && words[0] == "--backend" && (words[1] == "host" || words[1] == "cuda");
  if (!named && !words.empty()) {
    std::fprintf(stderr, "usage: attention_cpp [--backend host|cuda]\n");
    return 2;
  }
  try {
    vqgen_options options = vqgen::default_options();
    if (named && words[1] == "host") options.backend = VQGEN_HOST;
    const vqgen::Runtime runtime(options);
    runtime.make_current();
    const vqgen::Op op = runtime.prepare(kConfig);
    std::printf("libvqgen %s: workspace %zu bytes\n", vqgen_version(), op.workspace_bytes());
    const bool all = run(runtime, op, kTokens);
    return run(runtime, op, 77) && all ? 0 : 1;
  } catch (const vqgen::StatusError& error) {
    std::fprintf(stderr, "attention_cpp: %s: %s\n", vqgen_status_name(error.status()),
                 error.what());
    return 1;
  }
}

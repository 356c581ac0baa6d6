// vqgen inspect: what a quantized model folder holds, and the memory that it takes.
#include <algorithm>
#include <map>

#include "cli/command.h"
#include "core/problem/problem.h"
#include "core/profiles.h"
#include "heuristics/many_rows.h"
#include "quantizer/encode.h"
#include "quantizer/model_folder.h"

namespace vqgen::cli {
namespace {

struct InspectArguments {
  std::string folder;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::string key_format;
  std::string value_format;
};

constexpr std::int64_t kMostContext = std::int64_t{1} << 30;
constexpr std::int64_t kMostBatch = 65535;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(double bytes) { return fmt::format("{:.3f} GiB", bytes / kGiB); }

// Layers of one format.
struct FormatTotal {
  std::size_t layers = 0;
  double weights = 0;
  double bytes = 0;
  double codebook_bytes = 0;
  double bits() const { return 8 * bytes / weights; }
};

void report_layers(const ModelFolder& folder, Output& output) {
  std::map<std::string, FormatTotal> totals;
  FormatTotal all;
  for (const QuantizedLayer& layer : folder.layers) {
    for (FormatTotal* total : {&all, &totals[short_name(layer.format)]}) {
      ++total->layers;
      total->weights += static_cast<double>(layer.out_features * layer.in_features);
      total->bytes += static_cast<double>(layer.bytes);
      total->codebook_bytes += static_cast<double>(layer.codebook_bytes);
    }
  }
  const auto dense = static_cast<double>(folder.dense_bytes);
  const double elements = all.weights + static_cast<double>(folder.dense_elements);
  const double model_bits = 8 * (all.bytes + dense) / elements;
  for (const auto& [name, total] : totals) {
    output.line("{}  {} linear layers  {:.0f} weights  {:.3f} bits per weight", name, total.layers,
                total.weights, total.bits());
    output.document["formats"].push_back({{"format", name},
                                          {"layers", total.layers},
                                          {"weights", total.weights},
                                          {"bytes", total.bytes},
                                          {"bits_per_weight", total.bits()}});
  }
  output.line("quantized {:.0f} bytes, of which codebooks and scales {:.0f}", all.bytes,
              all.codebook_bytes);
  output.line("dense {:.0f} bytes in {} numbers", dense, folder.dense_elements);
  output.line("whole model {:.3f} bits per number, {}", model_bits, gib(all.bytes + dense));
  output.document.update({{"version", folder.quantization.version},
                          {"dtype", enum_name(folder.quantization.dtype)},
                          {"linear_layers", all.layers},
                          {"bits_per_weight", all.bits()},
                          {"bits_per_number", model_bits},
                          {"quantized_bytes", all.bytes},
                          {"codebook_bytes", all.codebook_bytes},
                          {"dense_bytes", dense},
                          {"dense_numbers", folder.dense_elements},
                          {"weight_bytes", all.bytes + dense}});
}

// The formats of a cache.
struct CacheFormats {
  VqFormat keys, values;
};

// Throws what report_memory() needs and the folder or the options do not have.
std::optional<CacheFormats> judge_memory(const InspectArguments& options,
                                         const ModelFolder& folder) {
  if (options.key_format.empty() != options.value_format.empty()) {
    throw Error(ErrorKind::bad_input,
                "inspect: --key-format goes with --value-format; give both, or neither");
  }
  if (options.context == 0 && !options.key_format.empty()) {
    throw Error(ErrorKind::bad_input,
                "inspect: --key-format is of a cache, whose size --context says; give --context");
  }
  if (options.context == 0) return std::nullopt;
  const ModelConfig& config = folder.config;
  if (config.layers == 0 || config.kv_heads == 0 || config.head_dim == 0) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}: num_hidden_layers is {}, KV heads are {} and head_dim is {}, where "
                    "--context needs all; leave --context out",
                    config.source, config.layers, config.kv_heads, config.head_dim));
  }
  if (options.key_format.empty()) return std::nullopt;
  CacheFormats cache{parse_format(options.key_format, "--key-format"),
                     for_values(parse_format(options.value_format, "--value-format"))};
  validate(AttentionDecode{folder.quantization.dtype,
                           {.batch = static_cast<int>(options.batch),
                            .query_heads = config.query_heads,
                            .kv_heads = config.kv_heads,
                            .head_dim = config.head_dim,
                            .tokens = options.context,
                            .recent_tokens = least_window(cache.keys, cache.values),
                            .value_head_dim = config.value_head_dim},
                           cache.keys,
                           cache.values},
           config.source);
  return cache;
}

// The bytes of keys or values of all sequences, in all layers: codes, codebooks, scales, transforms
// and the slots in full precision that the formats ask for.
double cache_bytes(const VqFormat& format, int head_dim, int window, const ModelConfig& config,
                   const InspectArguments& options) {
  const auto batch = static_cast<double>(options.batch);
  const double channels = static_cast<double>(config.kv_heads) * head_dim;
  const std::int64_t words =
      vq::stored_words(format.layout, options.context, format.row_words(head_dim));
  const double codes = 4.0 * static_cast<double>(words) * config.kv_heads * batch;
  const double raw = 2.0 * batch * channels * window;
  const auto books = static_cast<double>(kv_codebook_elements(format, config.kv_heads, head_dim));
  const double scales =
      format.stage_scales ? static_cast<double>(kv_stages(format, config.kv_heads, head_dim)) : 0.0;
  const double transforms =
      channels * (format.smooth + format.center + (format.klt ? head_dim : 0));
  return config.layers * (codes + raw + 2 * books + 4 * (scales + transforms));
}

// The most bytes of weights that long steps make dense at a time.
double dense_part_bytes(const ModelFolder& folder) {
  double most = 0;
  for (const QuantizedLayer& layer : folder.layers) {
    const WeightRowsShape shape{
        .rows = 0, .out_features = layer.out_features, .in_features = layer.in_features};
    most = std::max(most, 2 * static_cast<double>(dense_part(shape) * layer.in_features));
  }
  return most;
}

void report_memory(const InspectArguments& options, const std::optional<CacheFormats>& formats,
                   const ModelFolder& folder, Output& output) {
  const ModelConfig& config = folder.config;
  const double part = dense_part_bytes(folder);
  const double weights = output.document["weight_bytes"].get<double>() + part;
  const double dense = 2.0 * config.layers * static_cast<double>(config.kv_heads) *
                       (config.head_dim + config.value_head_dim) *
                       static_cast<double>(options.context * options.batch);
  output.line("{} sequences of {} tokens, {} layers of {} KV heads of {}{}:", options.batch,
              options.context, config.layers, config.kv_heads, config.head_dim,
              config.value_head_dim == config.head_dim
                  ? ""
                  : fmt::format(" and of {} in values", config.value_head_dim));
  output.line("  weights that long steps make dense at a time: {}, counted in the sums below",
              gib(part));
  output.line("  FP16 cache {}, with the weights {}", gib(dense), gib(dense + weights));
  output.document.update({{"context", options.context},
                          {"batch", options.batch},
                          {"dense_part_bytes", part},
                          {"fp16_cache_bytes", dense},
                          {"fp16_total_bytes", dense + weights}});
  if (!formats) return;
  const int window = least_window(formats->keys, formats->values);
  const double cache = cache_bytes(formats->keys, config.head_dim, window, config, options) +
                       cache_bytes(formats->values, config.value_head_dim, window, config, options);
  output.line("  {} and {} cache {}, with the weights {}; FP16 is {:.2f} times as large",
              short_name(formats->keys), short_name(formats->values), gib(cache),
              gib(cache + weights), dense / cache);
  output.document.update({{"cache_bytes", cache}, {"total_bytes", cache + weights}});
}

void inspect(const InspectArguments& options, Output& output) {
  const ModelFolder folder = read_model_folder(options.folder);
  const std::optional<CacheFormats> formats = judge_memory(options, folder);
  output.document["formats"] = Json::array();
  report_layers(folder, output);
  if (options.context > 0) report_memory(options, formats, folder, output);
}

}  // namespace

void add_inspect(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<InspectArguments>(
      app, output, "inspect", "Show the bits, bytes and memory of a quantized model's folder",
      inspect);
  add_examples(*command, "vqgen inspect my-model-2bit",
               "vqgen inspect my-model-2bit --context 32768 --batch 8 --key-format vecinfer-d4b8i8 "
               "--value-format vecinfer-d4b8i8");
  command->add_option("model", options->folder, "The folder that vqgen quantize wrote")->required();
  command
      ->add_option("--context", options->context, "Tokens per sequence, for the memory of a cache")
      ->check(whole_number(1, kMostContext));
  command->add_option("--batch", options->batch, "Sequences of the cache")
      ->capture_default_str()
      ->check(whole_number(1, kMostBatch));
  command->add_option("--key-format", options->key_format,
                      "The cache's format of keys: a preset's name, a format file, or JSON");
  command->add_option("--value-format", options->value_format,
                      "The cache's format of values, as --key-format");
}

}  // namespace vqgen::cli

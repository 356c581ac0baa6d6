// vqgen quantize: tensors of a safetensors file to a bundle, or a model's folder to another.
#include "quantizer/train/quantize.h"

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/quantize_model.h"
#include "cli/training_place.h"
#include "core/profiles.h"
#include "quantizer/access_counts.h"
#include "runtime/stored_data.h"

namespace vqgen::cli {
namespace {

struct QuantizeArguments {
  std::string model;
  std::string input, calibration, out;
  std::string keys, key_format, split_by, values, value_format, queries;
  std::string weights, format, inputs;
  std::vector<std::string> exclude;
  std::string config;
  std::string dtype;
  std::string device = "auto";
  bool keep_original = false;
  bool reorder = false;
  bool any_format = false;
  bool no_key_gain = false;
  std::uint64_t seed = 1;
};

[[noreturn]] void usage(const std::string& message) {
  throw Error(ErrorKind::bad_input, "quantize: " + message);
}

// Checks what --reorder needs of a format before anything is trained.
void require_numbered(const QuantizeArguments& options, const VqFormat& format,
                      const char* option) {
  if (!options.reorder) return;
  if (format.in_parts()) {
    usage(
        fmt::format("--reorder: {} is in parts, whose entries are not reordered; leave --reorder "
                    "out",
                    option));
  }
  if (format.decoder != Decoder::table) {
    usage(
        fmt::format("--reorder: codes of {} (decoder {}) are no numbers of entries that could be "
                    "renumbered; leave --reorder out",
                    option, enum_name(format.decoder)));
  }
}

std::optional<DType> parse_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return name == "f16" ? DType::f16 : DType::bf16;
}

std::string sizes_text(const AttentionData& data) {
  const QuantizedTensor& keys = data.keys;
  return fmt::format(
      "{}{} KV heads, {} tokens, head_dim {}{}{}",
      keys.batch > 1 ? fmt::format("{} sequences, ", keys.batch) : "", keys.heads, keys.rows,
      keys.columns,
      data.values.columns == keys.columns ? ""
                                          : fmt::format(", value_head_dim {}", data.values.columns),
      data.batch > 0 ? fmt::format("; {} queries of {} heads", data.batch, data.query_heads) : "");
}
std::string sizes_text(const LinearData& data) {
  return fmt::format("{} output features, {} input features", data.weights.rows,
                     data.weights.columns);
}

Json sizes_json(const AttentionData& data) {
  Json sizes = {{"sequences", data.keys.batch},
                {"kv_heads", data.keys.heads},
                {"tokens", data.keys.rows},
                {"head_dim", data.keys.columns}};
  if (data.values.columns != data.keys.columns) sizes["value_head_dim"] = data.values.columns;
  return sizes;
}
Json sizes_json(const LinearData& data) {
  return {{"out_features", data.weights.rows}, {"in_features", data.weights.columns}};
}

// Says as what sizes each item was read, before it is trained: tensors of other layouts have shapes
// that fit too.
std::function<void(const BundleItem&)> tell_sizes(const QuantizeArguments& options,
                                                  Output& output) {
  std::optional<Config> config;
  if (!options.config.empty()) config = read_config(std::filesystem::path(options.config));
  return [&options, &output, config](const BundleItem& item) {
    if (config) {
      require_same_sizes(
          *config, item,
          fmt::format("{}: item '{}' of {}", options.config, item.name, options.input));
    }
    std::visit(
        [&](const auto& data) {
          output.line("{}: {}", item.name, sizes_text(data));
          Json json = sizes_json(data);
          json["name"] = item.name;
          output.document["items"].push_back(std::move(json));
        },
        item.data);
    const auto* cache = std::get_if<AttentionData>(&item.data);
    if (cache != nullptr && cache->keys.heads > cache->keys.rows) {
      output.note(
          "warning: {}: keys are [kv_heads, tokens, head_dim]: {} heads of {} tokens were read; "
          "transpose them if they are [tokens, kv_heads, head_dim]",
          item.name, cache->keys.heads, cache->keys.rows);
    }
  };
}

// The common part of requests for caches and weights.
QuantizeRequest common_request(const QuantizeArguments& options, const TrainOptions& training,
                               Output& output) {
  return {.input = options.input,
          .dtype = parse_dtype(options.dtype),
          .keep_original = options.keep_original,
          .any_format = options.any_format,
          .exclude = options.exclude,
          .judged = tell_sizes(options, output),
          .options = training};
}

QuantizeResult quantize_cache(const QuantizeArguments& options, const TrainOptions& training,
                              Output& output) {
  if (options.values.empty() || options.key_format.empty() || options.value_format.empty()) {
    usage("--keys goes with --key-format, --values and --value-format");
  }
  QuantizeKvRequest request;
  static_cast<QuantizeRequest&>(request) = common_request(options, training, output);
  request.calibration = options.calibration;
  request.keys = options.keys;
  request.values = options.values;
  request.queries = options.queries;
  request.key_format = parse_format(options.key_format, "--key-format");
  request.value_format = parse_format(options.value_format, "--value-format");
  request.key_gain = !options.no_key_gain;
  if (!options.split_by.empty()) request.split_by = parse_format(options.split_by, "--split-by");
  require_numbered(options, request.key_format, "--key-format");
  require_numbered(options, request.value_format, "--value-format");
  return quantize_kv(request);
}

QuantizeResult quantize_matrix(const QuantizeArguments& options, const TrainOptions& training,
                               Output& output) {
  if (options.format.empty()) usage("--weights goes with --format");
  QuantizeWeightsRequest request;
  static_cast<QuantizeRequest&>(request) = common_request(options, training, output);
  request.weights = options.weights;
  request.inputs = options.inputs;
  request.format = parse_format(options.format, "--format");
  require_numbered(options, request.format, "--format");
  return quantize_weights(request);
}

// Warns of keys whose mean over the tokens outweighs what softmax sees, unless zeros hold it.
void warn_of_common(const std::vector<TensorReport>& report, const VqFormat& keys, Output& output) {
  if (keys.decoder == Decoder::affine) return;
  const TensorReport* worst = nullptr;
  std::size_t count = 0;
  for (const TensorReport& each : report) {
    if (!each.centered || each.centered->common_share <= kMostCommon) continue;
    ++count;
    if (worst == nullptr || each.centered->common_share > worst->centered->common_share) {
      worst = &each;
    }
  }
  if (worst == nullptr) return;
  output.note(
      "warning: {}{}: {:.4g} % of the squares are common to all tokens of a head, which softmax "
      "does not see but codes are spent on: go by the centered errors; take int4-kivi-keys, whose "
      "zeros hold the common part, or train keys with center or klt, whose mean holds it, by "
      "vqgen.hf.calibrate() in Python",
      worst->name, count > 1 ? fmt::format(" and {} others", count - 1) : "",
      100 * worst->centered->common_share);
}

void report(const QuantizeResult& result, const QuantizeArguments& options, Output& output) {
  output.document.update(
      {{"out", options.out}, {"seed", options.seed}, {"tensors", Json::array()}});
  for (const TensorReport& tensor : result.report) {
    const std::string centered =
        tensor.centered
            ? fmt::format("; centered {:.4f} calibration, {:.4f} input",
                          tensor.centered->calibration.relative, tensor.centered->input.relative)
            : "";
    output.line(
        "{}  {}  {:.3g} bits  codebooks {} bytes  relative error {:.4f} calibration, {:.4f} "
        "input{}",
        tensor.name, tensor.format, tensor.bits_per_element, tensor.codebook_bytes,
        tensor.calibration.relative, tensor.input.relative, centered);
    output.document["tensors"].push_back({{"name", tensor.name},
                                          {"format", tensor.format},
                                          {"bits_per_element", tensor.bits_per_element},
                                          {"codebook_bytes", tensor.codebook_bytes},
                                          {"rel_err_calibration", tensor.calibration.relative},
                                          {"rel_err_input", tensor.input.relative}});
    if (!tensor.centered) continue;
    Json& json = output.document["tensors"].back();
    json["rel_err_centered_calibration"] = tensor.centered->calibration.relative;
    json["rel_err_centered_input"] = tensor.centered->input.relative;
    json["common_share"] = tensor.centered->common_share;
  }
  if (const auto* cache = std::get_if<AttentionData>(&result.bundle.items.front().data)) {
    warn_of_common(result.report, cache->keys.format, output);
  }
  if (!options.split_by.empty()) {
    const VqFormat& keys = std::get<AttentionData>(result.bundle.items.front().data).keys.format;
    for (std::size_t i = 0; i < keys.parts.size(); ++i) {
      output.line("channels of part {}: {}", i, fmt::join(keys.parts[i].channels, ", "));
    }
    output.document["key_format"] = to_json(keys);
  }
  output.line("wrote {}", options.out);
}

// Refuses options that have no meaning for a whole model.
void require_model_options(const QuantizeArguments& options) {
  if (!options.input.empty()) usage("give either a model's folder or --input");
  const std::pair<const char*, bool> given[] = {{"--calibration", !options.calibration.empty()},
                                                {"--keys", !options.keys.empty()},
                                                {"--key-format", !options.key_format.empty()},
                                                {"--split-by", !options.split_by.empty()},
                                                {"--no-key-gain", options.no_key_gain},
                                                {"--values", !options.values.empty()},
                                                {"--value-format", !options.value_format.empty()},
                                                {"--queries", !options.queries.empty()},
                                                {"--weights", !options.weights.empty()},
                                                {"--inputs", !options.inputs.empty()},
                                                {"--config", !options.config.empty()},
                                                {"--keep-original", options.keep_original},
                                                {"--reorder", options.reorder}};
  for (const auto& [name, there] : given) {
    if (there) usage(fmt::format("{} goes with --input, and not with a model's folder", name));
  }
  if (options.format.empty()) {
    usage("a model's folder goes with --format; --format aqlm-2x8i8 is 2 bits per weight");
  }
}

void report_place(const TrainingPlace& place, Output& output) {
  output.document["device"] = place.name();
  if (!place.name().empty()) output.line("trained on {}", place.name());
}

TrainOptions training_options(const QuantizeArguments& options, TrainingPlace& place,
                              Output& output) {
  TrainOptions training;
  training.seed = options.seed;
  training.make_books = place.make_books();
  training.progress = [&](double fraction, const std::string& label) {
    output.show(fraction, label);
  };
  training.warn = [&](const std::string& message) { output.note("warning: {}", message); };
  return training;
}

void quantize_folder(const QuantizeArguments& options, Output& output) {
  require_model_options(options);
  output.step("reading {}", options.model);
  QuantizeModelRequest request;
  request.format = parse_format(options.format, "--format");
  TrainingPlace place(options.device);
  request.model = options.model;
  request.out = options.out;
  request.dtype = parse_dtype(options.dtype);
  request.any_format = options.any_format;
  request.exclude = options.exclude;
  request.trained_on = place.planned();
  request.options = training_options(options, place, output);
  run_quantize_model(std::move(request), output);
  report_place(place, output);
}

void quantize(const QuantizeArguments& options, Output& output) {
  if (options.model.empty() && options.input.empty()) {
    usage("give a model's folder, or --input with --keys or --weights");
  }
  if (!options.model.empty()) {
    quantize_folder(options, output);
    return;
  }
  if (options.keys.empty() == options.weights.empty()) {
    usage("give either --keys (with --values) or --weights");
  }
  const bool cache = !options.keys.empty();
  if (cache && (!options.format.empty() || !options.inputs.empty())) {
    usage("--format and --inputs go with --weights");
  }
  if (!cache && !(options.key_format + options.split_by + options.values + options.value_format +
                  options.queries)
                     .empty()) {
    usage("--key-format, --split-by, --values, --value-format and --queries go with --keys");
  }
  if (!cache && options.no_key_gain) {
    usage("--no-key-gain goes with --keys; entries of weights have no gain");
  }
  if (!options.config.empty() && !options.split_by.empty()) {
    usage("--config goes without --split-by, which makes a key format that no config has yet");
  }
  if (!cache && !options.calibration.empty()) {
    usage("--calibration goes with --keys; weights are trained on themselves");
  }
  // Training takes long: a place that cannot be written is found before it, not after.
  require_place("quantize", "--out", options.out);
  output.step("reading {}", options.input);
  TrainingPlace place(options.device);
  const TrainOptions training = training_options(options, place, output);
  QuantizeResult result = cache ? quantize_cache(options, training, output)
                                : quantize_matrix(options, training, output);
  output.step("writing {}", options.out);
  if (options.reorder) reorder(result.bundle, profile_bundle(result.bundle, 1));
  write_bundle(options.out, result.bundle);
  report(result, options, output);
  report_place(place, output);
}

}  // namespace

void add_quantize(CLI::App& app, Output& output) {
  const auto [command, options] =
      add_command<QuantizeArguments>(app, output, "quantize",
                                     "Train codebooks, and encode a model's folder, or tensors "
                                     "to a bundle; names may have stars",
                                     quantize);
  add_examples(*command,
               "vqgen quantize --input tests/data/tinycode-weight.safetensors --weights '*.weight' "
               "--format aqlm-2x8 --out out/weights",
               "vqgen quantize --input tests/data/tinycode-kv-heldout.safetensors --keys layer2.k "
               "--key-format vecinfer-d4b8 --values layer2.v --value-format vecinfer-d4b8 "
               "--queries layer2.q --out out/cache");
  command->add_option("model", options->model,
                      "The folder of a Hugging Face model, whose linear layers are quantized");
  command->add_option(
      "--input", options->input,
      "The safetensors file to encode, an index of shards, or a folder with one of them");
  command->add_option("--calibration", options->calibration,
                      "Tensors to train on, as --input [the input]");
  command->add_option("--out", options->out, "The bundle, or the folder, to write")->required();
  command->add_option("--keys", options->keys, "Keys, [kv_heads, tokens, head_dim]");
  command->add_option("--key-format", options->key_format,
                      "A preset's name, a format file, or a JSON object");
  command->add_option(
      "--split-by", options->split_by,
      "Reassign channels of keys in parts to the parts, by their quantization error in FORMAT");
  command->add_flag("--no-key-gain", options->no_key_gain,
                    "Store no gain, which lengthens the keys' entries where attention reads them");
  command->add_option("--values", options->values, "Values, shaped as the keys");
  command->add_option("--value-format", options->value_format,
                      "A preset's name, a format file, or a JSON object");
  command->add_option("--queries", options->queries,
                      "Queries of the last n tokens, [query_heads, n, head_dim]");
  command->add_option("--weights", options->weights, "Weights, [out_features, in_features]");
  command->add_option("--format", options->format, "The weights' format, as --key-format");
  command->add_option("--inputs", options->inputs, "Rows of x for the weights, [n, in_features]");
  command
      ->add_option("--exclude", options->exclude,
                   "Tensors or linear layers to leave out, by names with stars; repeatable")
      ->allow_extra_args(false);
  command->add_option("--config", options->config,
                      "The config that is to read the bundle, whose sizes and formats must match");
  command
      ->add_option("--dtype", options->dtype, "Element type of what is written [the tensors' own]")
      ->check(CLI::IsMember({"f16", "bf16"}));
  command
      ->add_option(
          "--device", options->device,
          "Device to train on: a GPU's number, cpu, or auto: GPU 0 if it can train the format")
      ->capture_default_str()
      ->check([number = whole_number(0, 1 << 20)](const std::string& text) {
        const bool fits = text == "auto" || text == "cpu" || number(text).empty();
        return fits ? "" : "'" + text + "' is no GPU's number, and neither cpu nor auto";
      });
  command->add_flag("--keep-original", options->keep_original,
                    "Store the source tensors in the bundle too");
  command->add_flag("--reorder", options->reorder,
                    "Number entries by how often they are read, the hottest first");
  command->add_flag("--any-format", options->any_format,
                    "Take formats and sizes that no kernel of vqgen reads, for other programs");
  command->add_option("--seed", options->seed, "Seed of k-means")
      ->capture_default_str()
      ->check(whole_number(0, kMostSeed));
}

}  // namespace vqgen::cli

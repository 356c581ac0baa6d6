#include "quantizer/model_config.h"

#include <fmt/format.h>

#include <vq/layout/rotation.h>
#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/format_version.h"
#include "quantizer/name_pattern.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kMostConfigBytes = 1 << 26;
constexpr double kMostSize = 1e9;

using Ordered = nlohmann::ordered_json;

// The decoder's part of the config, which some models keep in an object of its own.
JsonCursor decoder_of(const JsonCursor& root) {
  return root.has("text_config") && root.at("text_config").value().is_object()
             ? root.at("text_config")
             : root;
}

// A size that is there and no null, or `otherwise`.
int size_at(const JsonCursor& at, const std::string& key, int otherwise) {
  if (!at.has(key) || at.at(key).value().is_null()) return otherwise;
  return static_cast<int>(at.at(key).integer(1, kMostSize));
}

void require_text_decoder(const JsonCursor& root) {
  for (const char* part : {"vision_config", "audio_config", "encoder", "speech_config"}) {
    if (!root.has(part) || !root.at(part).value().is_object()) continue;
    root.at(part).fail(
        "is of a model with more than a decoder of text, which vqgen does not quantize; save the "
        "decoder alone, or quantize chosen tensors with --input and --weights");
  }
  if (root.has("is_encoder_decoder") && root.at("is_encoder_decoder").boolean()) {
    root.at("is_encoder_decoder")
        .fail(
            "is true, and vqgen quantizes decoders; quantize chosen tensors with --input and "
            "--weights");
  }
}

void set_dtype(Ordered& json, DType type) {
  const std::string dtype = type == DType::f16 ? "float16" : "bfloat16";
  bool said = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (Ordered* at : {&json, json.contains("text_config") ? &json["text_config"] : nullptr}) {
      if (at == nullptr || !at->is_object() || !at->contains(key)) continue;
      (*at)[key] = dtype;
      said = said || at == &json;
    }
  }
  if (!said) json["dtype"] = dtype;
}

// "model.layers.3.mlp.up_proj" with stars for numbers.
std::string starred(const std::string& module) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string part = module.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    pattern += (begin > 0 ? "." : "") + (number ? std::string("*") : part);
    begin = end + 1;
  }
  return pattern;
}

}  // namespace

const VqFormat& QuantizationConfig::format_of(std::string_view module) const {
  for (const FormatOverride& each : overrides) {
    if (match_pattern(each.modules, module)) return each.format;
  }
  return format;
}

const WeightShape* QuantizationConfig::shape_of(std::string_view module) const {
  for (const WeightShape& each : weight_shapes) {
    if (match_pattern(each.modules, module)) return &each;
  }
  return nullptr;
}

const RowRotation* QuantizationConfig::rotation_of(std::string_view module) const {
  for (const RowRotation& each : rotations) {
    if (match_pattern(each.modules, module)) return &each;
  }
  return nullptr;
}

void require_rotation(const RowRotation& rotation, const WeightShape& shape,
                      const std::string& where) {
  for (const std::int64_t features : {shape.in_features, shape.out_features}) {
    if (vq::rotation_order(features) > 0) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: no matrix rotates {} features: sizes are a power of two times 1, "
                            "12, 20, 28, 36, 52, 60, 108, 140, 156 or 172; take another model",
                            where, features));
  }
  std::int64_t rows = 0;
  for (const RotatedPart& part : rotation.parts) rows += part.out_features;
  if (rotation.parts.empty() || rows == shape.out_features) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: its parts have {} rows of {}; fetch the folder again, or import "
                          "again",
                          where, rows, shape.out_features));
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  ModelConfig config;
  const std::filesystem::path path = folder / "config.json";
  config.source = path.string();
  config.text = read_text(path, kMostConfigBytes);
  const Json json = parse_json(config.text, config.source);
  const JsonCursor root(json, config.source);
  if (!json.is_object()) root.fail("must be an object, as the config of a model is");
  if (root.has("model_type")) config.model_type = root.at("model_type").string();
  require_text_decoder(root);
  const JsonCursor decoder = decoder_of(root);
  config.layers = size_at(decoder, "num_hidden_layers", 0);
  config.query_heads = size_at(decoder, "num_attention_heads", 0);
  config.kv_heads = size_at(decoder, "num_key_value_heads", config.query_heads);
  const int hidden = size_at(decoder, "hidden_size", 0);
  config.head_dim =
      size_at(decoder, "head_dim", config.query_heads > 0 ? hidden / config.query_heads : 0);
  const bool latent = size_at(decoder, "kv_lora_rank", 0) > 0;  // whose cache has no heads
  config.value_head_dim =
      latent ? config.head_dim : size_at(decoder, "v_head_dim", config.head_dim);
  if (root.has(kQuantizationKey)) config.quantization = root.at(kQuantizationKey).value();
  return config;
}

QuantizationConfig read_quantization(const ModelConfig& config) {
  if (!config.quantization) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: there is no '{}': the model is not quantized; quantize it with "
                            "vqgen quantize",
                            config.source, kQuantizationKey));
  }
  const JsonCursor root(*config.quantization, config.source, std::string("/") + kQuantizationKey);
  const std::string method = root.member("quant_method").string();
  if (method != kQuantMethod) {
    root.at("quant_method")
        .fail(fmt::format("is '{}' where vqgen writes '{}'; {}", method, kQuantMethod,
                          method == "aqlm" ? "import the model with vqgen import"
                                           : "quantize the original model with vqgen quantize"));
  }
  format_version(root, "version", kModelVersion);
  QuantizationConfig quantization;
  read_fields(root, quantization);
  return quantization;
}

std::string with_dtype(const std::string& text, DType dtype) {
  Ordered json = Ordered::parse(text);
  set_dtype(json, dtype);
  return json.dump(2) + "\n";
}

std::string with_quantization(const ModelConfig& config, const QuantizationConfig& quantization) {
  Ordered json = Ordered::parse(config.text);
  set_dtype(json, quantization.dtype);
  json[kQuantizationKey] = Ordered::parse(to_json(quantization).dump());
  return json.dump(2) + "\n";
}

std::vector<WeightShape> shape_patterns(const std::vector<WeightShape>& shapes) {
  const auto same_size = [](const WeightShape& a, const WeightShape& b) {
    return a.out_features == b.out_features && a.in_features == b.in_features;
  };
  std::map<std::string, std::vector<WeightShape>> groups;
  for (const WeightShape& each : shapes) groups[starred(each.modules)].push_back(each);
  QuantizationConfig found;  // whose shape_of() has to find what is given
  std::vector<WeightShape> patterns;
  for (const auto& [pattern, group] : groups) {
    const WeightShape& first = group.front();
    if (std::ranges::all_of(group, [&](const auto& each) { return same_size(each, first); })) {
      patterns.push_back({pattern, first.out_features, first.in_features});
    } else {
      found.weight_shapes.insert(found.weight_shapes.end(), group.begin(), group.end());
    }
  }
  // A star matches dots too: what says more comes first.
  std::ranges::stable_sort(
      patterns, [](const auto& a, const auto& b) { return a.modules.size() > b.modules.size(); });
  found.weight_shapes.insert(found.weight_shapes.end(), patterns.begin(), patterns.end());
  const bool all_found = std::ranges::all_of(shapes, [&](const WeightShape& each) {
    const WeightShape* const shape = found.shape_of(each.modules);
    return shape != nullptr && same_size(*shape, each);
  });
  return all_found ? found.weight_shapes : shapes;
}

}  // namespace vqgen

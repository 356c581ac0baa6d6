#include "quantizer/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/bundle_schema.h"
#include "quantizer/encode.h"
#include "quantizer/foreign.h"

namespace vqgen {
namespace {

constexpr const char* kSuffixes[] = {".codes",         ".codebooks",   ".stage_scales",
                                     ".output_scales", ".input_signs", ".output_signs"};

// The module that a tensor of a quantized layer belongs to; empty for other tensors.
std::string quantized_module(std::string_view tensor) {
  for (const std::string_view suffix : kSuffixes) {
    if (tensor.ends_with(suffix))
      return std::string(tensor.substr(0, tensor.size() - suffix.size()));
  }
  return "";
}

class FolderReader {
 public:
  explicit FolderReader(const std::filesystem::path& folder)
      : config_(read_model_config(folder)),
        quantization_(read_quantization(config_)),
        file_(model_tensors_at(folder)) {}

  ModelFolder read() {
    ModelFolder result{config_, quantization_, {}, 0, 0};
    std::set<std::string> modules;
    std::vector<std::string> names;
    for (const TensorInfo& info : file_.tensors()) {
      const std::string module = quantized_module(info.name);
      names.push_back(info.name);
      if (!module.empty()) {
        modules.insert(module);
        continue;
      }
      result.dense_bytes += info.end - info.begin;
      result.dense_elements += info.elements();
    }
    if (modules.empty()) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: no tensor ends in .codes, though {} says that the model is "
                              "quantized; quantize it again",
                              file_.source(), config_.source));
    }
    for (const std::string& module : modules) result.layers.push_back(layer(module));
    require_all_layers(config_, names, file_.source());
    return result;
  }

 private:
  QuantizedLayer layer(const std::string& module) const {
    const WeightShape* const shape = quantization_.shape_of(module);
    if (shape == nullptr) {
      file_.fail(module + ".codes", fmt::format("{} has no weight_shapes for '{}'; quantize again",
                                                config_.source, module));
    }
    const QuantizedTensor sizes = weight_sizes(
        quantization_.format_of(module), quantization_.dtype, shape->out_features,
        shape->in_features,
        fmt::format("{}: /{}: format of '{}'", config_.source, kQuantizationKey, module));
    QuantizedLayer result{module, sizes.format, sizes.rows, sizes.columns, 0, 0};
    const RowRotation* const rotation = quantization_.rotation_of(module);
    if (rotation != nullptr) {
      require_rotation(
          *rotation, *shape,
          fmt::format("{}: /{}: rotation of '{}'", config_.source, kQuantizationKey, module));
    }
    std::set<std::string> expected;
    for (const WeightTensor& tensor : weight_tensors(sizes, rotation != nullptr)) {
      const std::string name = module + tensor.suffix;
      expected.insert(name);
      const TensorInfo* const info = file_.find(name);
      if (info == nullptr) {
        file_.fail(name,
                   "is not there, though other tensors of the layer are; fetch the folder "
                   "again, or quantize again");
      }
      const bool codes = name.ends_with(".codes");
      const bool same_type = info->type == tensor.type || (codes && info->type == TensorType::u32);
      if (!same_type || info->shape != tensor.shape) {
        file_.fail(name, fmt::format("is {} {} where {} asks for {} {}; fetch the folder again, or "
                                     "quantize again",
                                     info->dtype, shape_text(info->shape), config_.source,
                                     enum_name(tensor.type), shape_text(tensor.shape)));
      }
      result.bytes += info->end - info->begin;
      if (!codes) result.codebook_bytes += info->end - info->begin;
    }
    for (const char* suffix : kSuffixes) {
      if (expected.contains(module + suffix) || file_.find(module + suffix) == nullptr) continue;
      file_.fail(module + suffix, fmt::format("is there, but the format in {} has none; quantize "
                                              "again",
                                              config_.source));
    }
    return result;
  }

  ModelConfig config_;
  QuantizationConfig quantization_;
  SafetensorsFile file_;
};

}  // namespace

QuantizedTensor weight_sizes(const VqFormat& format, DType dtype, std::int64_t out_features,
                             std::int64_t in_features, const std::string& where) {
  // Larger sizes would overflow those of a config.
  const auto within = [](std::int64_t size) { return size >= 1 && size <= kMostFeatures; };
  if (!within(out_features) || !within(in_features)) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: weights are {} x {}; each size is 1 to {}",
                                                  where, out_features, in_features, kMostFeatures));
  }
  validate(Gemv{{dtype, {1, out_features, in_features}, format}}, where);
  QuantizedTensor sizes;
  sizes.format = format;
  sizes.dtype = dtype;
  sizes.rows = out_features;
  sizes.columns = in_features;
  sizes.row_words = format.row_words(in_features);
  sizes.units = weight_units(format, out_features, in_features);
  return sizes;
}

std::vector<WeightTensor> weight_tensors(const QuantizedTensor& sizes, bool rotated) {
  const std::vector<std::int64_t> whole = codes_shape(sizes);
  std::vector<WeightTensor> tensors{
      {".codes", TensorType::i32, {whole.begin() + 2, whole.end()}},  // without batch and heads
      {".codebooks", tensor_type(sizes.dtype), codebooks_shape(sizes)}};
  if (sizes.format.stage_scales) {
    tensors.push_back({".stage_scales", TensorType::f32, scales_shape(sizes)});
  }
  if (sizes.format.output_scales) {
    tensors.push_back({".output_scales", TensorType::f32, {sizes.rows}});
  }
  if (rotated) {
    tensors.push_back({".input_signs", TensorType::f32, {sizes.columns}});
    tensors.push_back({".output_signs", TensorType::f32, {sizes.rows}});
  }
  return tensors;
}

std::vector<TensorInfo> weight_infos(const std::string& name, const QuantizedTensor& sizes,
                                     bool rotated) {
  std::vector<TensorInfo> infos;
  for (WeightTensor& tensor : weight_tensors(sizes, rotated)) {
    TensorInfo info{name + tensor.suffix, tensor.type, std::string(enum_name(tensor.type)),
                    std::move(tensor.shape)};
    const bool wide = tensor.type == TensorType::f32 || tensor.type == TensorType::i32;
    info.end = static_cast<std::uint64_t>(info.elements()) * (wide ? 4 : 2);
    infos.push_back(std::move(info));
  }
  return infos;
}

std::span<const std::byte> weight_bytes(const QuantizedTensor& weights,
                                        const WeightTensor& tensor) {
  const std::string_view suffix = tensor.suffix;
  if (suffix == ".codes") return std::as_bytes(std::span(weights.codes));
  if (suffix == ".codebooks") return std::as_bytes(std::span(weights.codebooks));
  if (suffix == ".stage_scales") return std::as_bytes(std::span(weights.stage_scales));
  return std::as_bytes(std::span(weights.output_scales));
}

std::filesystem::path model_tensors_at(const std::filesystem::path& folder) {
  std::error_code code;
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"}) {
    if (std::filesystem::exists(folder / name, code)) return folder / name;
  }
  return tensors_at(folder);
}

ModelFolder read_model_folder(const std::filesystem::path& folder) {
  return FolderReader(folder).read();
}

int layer_number(std::string_view module) {
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    int number = 0;
    const auto read = std::from_chars(module.data() + begin, module.data() + end, number);
    if (end > begin && read.ec == std::errc{} && read.ptr == module.data() + end && number >= 0) {
      return number;
    }
    begin = end + 1;
  }
  return -1;
}

void require_all_layers(const ModelConfig& config, std::span<const std::string> modules,
                        const std::string& source) {
  std::set<int> numbers;
  for (const std::string& module : modules) numbers.insert(layer_number(module));
  for (int layer = 0; layer < config.layers; ++layer) {
    if (numbers.contains(layer)) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: layer {} of {} (num_hidden_layers of {}) has no tensor; fetch the "
                            "model again",
                            source, layer, config.layers, config.source));
  }
}

}  // namespace vqgen

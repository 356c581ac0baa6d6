#include "quantizer/import/quip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/format/e8p.h"
#include "quantizer/import/folder_import.h"
#include "quantizer/import/quip_codes.h"
#include "quantizer/model_folder.h"

namespace vqgen {
namespace {

constexpr const char* kQidxs = ".Qidxs";
constexpr const char* kInputSigns = ".SU";
constexpr const char* kOutputSigns = ".SV";
constexpr const char* kScale = ".Wscale";
constexpr const char* kCodebook = ".codebook_id";
constexpr const char* kInputScales = ".scaleWH";
constexpr const char* kPartScales = ".fuse_scales";
constexpr std::int64_t kE8p12 = 7;  // the codebook's number
constexpr std::int64_t kMostQuipFeatures = 1 << 24;
constexpr std::int64_t kWordInputs = 32;

// Layers that are several of the model, in the order of their rows.
struct Fused {
  const char* module;  // the end of its name
  const char* named;   // in the model folder
  std::vector<const char*> parts;
};
const Fused kFused[] = {{"qkv_proj", "qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                        {"upgate_proj", "gate_up_proj", {"up_proj", "gate_proj"}}};

struct QuipLayer {
  TensorsPointer file;
  const TensorInfo* codes = nullptr;
  const TensorInfo* input_signs = nullptr;
  const TensorInfo* input_scales = nullptr;  // null without "rescale_WH"
  const TensorInfo* output_signs = nullptr;
  const TensorInfo* part_scales = nullptr;  // null of a layer that is one
  const TensorInfo* scale = nullptr;
  std::vector<std::int64_t> part_rows;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::f16;
};

void write_codes(const QuipLayer& layer, const TakeBytes& take) {
  const auto row_codes = layer.columns / 8;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(layer.columns / 2));
  std::vector<std::uint16_t> codes(static_cast<std::size_t>(kQuipTileRows * row_codes));
  std::uint64_t from = 0, into = 0;
  for (std::int64_t row = 0; row < layer.rows; row += kQuipTileRows) {
    layer.file->read_bytes(*layer.codes, from, std::as_writable_bytes(std::span(words)));
    quip_tile(words, row_codes, codes);
    take(into, std::as_bytes(std::span(codes)));
    from += words.size() * sizeof words[0];
    into += codes.size() * sizeof codes[0];
  }
}

void write_table(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<std::uint16_t> bits;
  for (const float element : quip_table()) bits.push_back(element_from_float(layer.dtype, element));
  take(0, std::as_bytes(std::span(bits)));
}

// Numbers that are not zero, so that a division by them is one.
std::vector<float> read_divisors(const SafetensorsFile& file, const TensorInfo& info) {
  std::vector<float> values = file.read_finite(info.name);
  const auto zero = std::ranges::find(values, 0.0f);
  if (zero != values.end()) {
    file.fail(info.name, fmt::format("element {} is 0, by which inputs are divided; fetch the "
                                     "model again",
                                     zero - values.begin()));
  }
  return values;
}

void write_input_signs(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<float> signs = layer.file->read_finite(layer.input_signs->name);
  if (layer.input_scales != nullptr) {
    const std::vector<float> scales = read_divisors(*layer.file, *layer.input_scales);
    for (std::size_t i = 0; i < signs.size(); ++i) signs[i] /= scales[i];
    const auto beyond = std::ranges::find_if(signs, [](float s) { return !std::isfinite(s); });
    if (beyond != signs.end()) {
      layer.file->fail(layer.input_scales->name,
                       fmt::format("element {} is so small that SU over it is not finite; fetch "
                                   "the model again",
                                   beyond - signs.begin()));
    }
  }
  take(0, std::as_bytes(std::span(signs)));
}

void write_output_signs(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<float> signs = layer.file->read_finite(layer.output_signs->name);
  if (layer.part_scales != nullptr) {
    const std::vector<float> scales = layer.file->read_finite(layer.part_scales->name);
    std::size_t row = 0;
    for (std::size_t part = 0; part < scales.size(); ++part) {
      const std::size_t end = row + static_cast<std::size_t>(layer.part_rows[part]);
      for (; row < end; ++row) signs[row] *= scales[part];
    }
    const auto beyond = std::ranges::find_if(signs, [](float s) { return !std::isfinite(s); });
    if (beyond != signs.end()) {
      layer.file->fail(layer.part_scales->name,
                       fmt::format("times element {} of SV is not finite; fetch the model again",
                                   beyond - signs.begin()));
    }
  }
  take(0, std::as_bytes(std::span(signs)));
}

class QuipPlanner {
 public:
  QuipPlanner(const std::filesystem::path& folder, const ModelConfig& config)
      : import_(folder, config), file_(import_.file()), config_(config) {}

  ImportPlan plan() {
    read_settings();
    QuantizationConfig quantization;
    quantization.dtype = dtype_;
    quantization.format = format_;
    std::vector<WeightShape> shapes;
    for (const TensorInfo& info : file_.tensors()) {
      if (info.name.ends_with(kQidxs)) {
        shapes.push_back(add_layer(info, quantization.rotations));
      } else if (!is_of_layer(info)) {
        import_.add_dense(info);
      }
    }
    quantization.rotations = patterns_of(quantization.rotations);
    return import_.finish(std::move(quantization), shapes, kQidxs);
  }

 private:
  void read_settings() {
    const Json json = parse_json(config_.text, config_.source);
    const JsonCursor root(json, config_.source);
    const JsonCursor settings = root.member(kQuipKey);
    const auto require = [&](const char* key, const std::string& wanted) {
      const std::string found = settings.member(key).string();
      if (found == wanted) return;
      settings.at(key).fail(
          fmt::format("is '{}', and '{}' is read; take another model, or quantize "
                      "the original with vqgen quantize",
                      found, wanted));
    };
    require("codebook", "E8P12");
    require("idx_dtype", "torch.int64");
    const auto number = [&](const char* key, std::int64_t otherwise) {
      return settings.has(key) ? settings.at(key).integer(-1, 1 << 20) : otherwise;
    };
    if (number("codebook_version", 1) != 1) {
      settings.at("codebook_version").fail("is not 1, which is read; fetch a newer model");
    }
    if (number("lora_rank", 0) > 0) {
      settings.at("lora_rank")
          .fail("is above 0: low-rank parts are not read; take a model without");
    }
    if (settings.has("outlier_channel_split") && settings.at("outlier_channel_split").boolean()) {
      settings.at("outlier_channel_split")
          .fail("is true: split outliers are not read; take a model without");
    }
    rescaled_ = settings.has("rescale_WH") && settings.at("rescale_WH").boolean();
    format_.vector_size = kE8pVectorSize;
    format_.index_bits = 16;
    format_.decoder = Decoder::e8p;
    format_.stage_scales = true;
    const bool wide = std::ranges::any_of(
        file_.tensors(), [](const TensorInfo& info) { return info.type == TensorType::bf16; });
    dtype_ = wide ? DType::bf16 : DType::f16;
  }

  void judge_codes(const TensorInfo& info, QuipLayer& layer) const {
    if (info.dtype != "I64") {
      file_.fail(info.name, fmt::format("is {} where codes of E8P12 are I64; fetch the model again",
                                        info.dtype));
    }
    const std::vector<std::int64_t>& shape = info.shape;
    const bool sized = shape.size() == 2 && shape[0] >= 1 && shape[0] <= kMostQuipFeatures &&
                       shape[1] >= 1 && shape[1] <= kMostQuipFeatures / kWordInputs &&
                       shape[0] % kQuipTileRows == 0 &&
                       shape[1] % (kQuipTileColumns / kWordInputs) == 0;
    if (!sized) {
      file_.fail(info.name, fmt::format("has shape {} where E8P12 has [out_features, in_features / "
                                        "32], of whole tiles of 16 x 64; fetch the model again",
                                        shape_text(shape)));
    }
    layer.rows = shape[0];
    layer.columns = shape[1] * kWordInputs;
    const auto bytes = static_cast<std::uint64_t>(info.elements()) * 8;
    if (info.end - info.begin == bytes) return;
    file_.fail(info.name, fmt::format("has {} bytes where I64 {} takes {}; fetch the file again",
                                      info.end - info.begin, shape_text(shape), bytes));
  }

  void require_codebook(const std::string& module) const {
    const TensorInfo& info = import_.beside(module, kCodebook, kQidxs);
    import_.require_shape(info, {});
    std::int64_t number = 0;
    if (info.dtype != "I64" || info.end - info.begin != sizeof number) {
      file_.fail(info.name,
                 fmt::format("is {} where I64 is wanted; fetch the file again", info.dtype));
    }
    file_.read_bytes(info, 0, std::as_writable_bytes(std::span(&number, 1)));
    if (number == kE8p12) return;
    file_.fail(info.name,
               fmt::format("is {} where E8P12 is {}; take another model", number, kE8p12));
  }

  const TensorInfo* floats(const std::string& module, const char* suffix,
                           const std::vector<std::int64_t>& shape) const {
    const TensorInfo& info = file_.floats(import_.beside(module, suffix, kQidxs).name);
    import_.require_shape(info, shape);
    return &info;
  }

  QuipLayer judge_layer(const TensorInfo& info, const std::string& module) const {
    QuipLayer layer;
    layer.file = import_.pointer();
    layer.codes = &info;
    layer.dtype = dtype_;
    judge_codes(info, layer);
    require_codebook(module);
    layer.input_signs = floats(module, kInputSigns, {layer.columns});
    layer.output_signs = floats(module, kOutputSigns, {layer.rows});
    layer.scale = floats(module, kScale, {});
    if (rescaled_) layer.input_scales = floats(module, kInputScales, {layer.columns});
    for (const char* const suffix : {".weight", ".codes", ".A", ".B", ".ocs_dupe_inds"}) {
      import_.require_none(module, suffix, info);
    }
    return layer;
  }

  WeightShape add_layer(const TensorInfo& info, std::vector<RowRotation>& rotations) {
    const std::string module = info.name.substr(0, info.name.size() - std::strlen(kQidxs));
    import_.require_no_expert(module, info);
    QuipLayer layer = judge_layer(info, module);
    RowRotation rotation{module};
    if (file_.find(module + kPartScales) != nullptr) rotation = fused(module, layer);
    const WeightShape shape{rotation.modules, layer.rows, layer.columns};
    require_rotation(rotation, shape, fmt::format("{}: {}", file_.source(), info.name));
    const QuantizedTensor sizes = weight_sizes(format_, dtype_, layer.rows, layer.columns,
                                               fmt::format("{}: {}", file_.source(), info.name));
    import_.require_kernel(sizes, info.name);
    const std::uint64_t bytes =
        import_.add_layer(shape.modules, sizes, true, info.part,
                          [&](std::string_view suffix) { return writer(suffix, layer); });
    std::uint64_t before = 0;
    for (const TensorInfo* each : {layer.codes, layer.input_signs, layer.input_scales,
                                   layer.output_signs, layer.part_scales, layer.scale}) {
      if (each != nullptr) before += each->end - each->begin;
    }
    import_.plan().count(
        {"quip# E8P12", short_name(format_) + ", rotated", "linear layers", 1, before, bytes});
    rotations.push_back(std::move(rotation));
    return shape;
  }

  // The rotation of a layer that is several, by its name in the model folder.
  RowRotation fused(const std::string& module, QuipLayer& layer) const {
    const std::size_t dot = module.rfind('.') + 1;
    const auto* const found = std::ranges::find_if(
        kFused, [&](const Fused& each) { return module.substr(dot) == each.module; });
    if (found == std::end(kFused)) {
      file_.fail(module + kPartScales,
                 "is of a layer that is several, and qkv_proj and upgate_proj are read; take "
                 "another model");
    }
    if (file_.find(module + ".bias") != nullptr) {
      file_.fail(module + ".bias",
                 "is of a layer that is several, whose bias is not read; take another model");
    }
    const auto parts = static_cast<std::int64_t>(found->parts.size());
    layer.part_scales = floats(module, kPartScales, {parts});
    layer.part_rows =
        parts == 3 ? query_rows(module, layer.rows) : std::vector<std::int64_t>(2, layer.rows / 2);
    RowRotation rotation{module.substr(0, dot) + found->named};
    for (std::size_t part = 0; part < layer.part_rows.size(); ++part) {
      rotation.parts.push_back({found->parts[part], layer.part_rows[part]});
    }
    return rotation;
  }

  // The rows of queries, keys and values, by the heads of the config.
  std::vector<std::int64_t> query_rows(const std::string& module, std::int64_t rows) const {
    const std::int64_t head = config_.head_dim;
    const std::vector<std::int64_t> of_parts{config_.query_heads * head, config_.kv_heads * head,
                                             config_.kv_heads * head};
    const std::int64_t all = of_parts[0] + of_parts[1] + of_parts[2];
    if (all == rows && config_.kv_heads > 0 && head > 0) return of_parts;
    file_.fail(module + kQidxs,
               fmt::format("has {} outputs, and the heads of {} are {}; fetch the model again",
                           rows, config_.source, all));
  }

  std::function<void(const TakeBytes&)> writer(std::string_view suffix, const QuipLayer& layer) {
    if (suffix == ".codes") return [layer](const TakeBytes& take) { write_codes(layer, take); };
    if (suffix == ".codebooks") return [layer](const TakeBytes& take) { write_table(layer, take); };
    if (suffix == ".input_signs") {
      return [layer](const TakeBytes& take) { write_input_signs(layer, take); };
    }
    if (suffix == ".output_signs") {
      return [layer](const TakeBytes& take) { write_output_signs(layer, take); };
    }
    return [layer](const TakeBytes& take) {
      const std::vector<float> scale = layer.file->read_finite(layer.scale->name);
      take(0, std::as_bytes(std::span(scale)));
    };
  }

  // Tensors of a layer, which its codes bring in; those of none are refused.
  bool is_of_layer(const TensorInfo& info) const {
    for (const std::string_view suffix :
         {kInputSigns, kOutputSigns, kScale, kCodebook, kInputScales, kPartScales}) {
      if (!info.name.ends_with(suffix)) continue;
      const std::string module = info.name.substr(0, info.name.size() - suffix.size());
      if (file_.find(module + kQidxs) == nullptr) {
        file_.fail(info.name,
                   fmt::format("is there without '{}{}'; fetch the model again", module, kQidxs));
      }
      if (suffix == kInputScales && !rescaled_) {
        file_.fail(info.name, fmt::format("is there, and rescale_WH of {} is not true; fetch the "
                                          "model again",
                                          config_.source));
      }
      return true;
    }
    return false;
  }

  // Rotations by exact names as few patterns.
  static std::vector<RowRotation> patterns_of(const std::vector<RowRotation>& rotations) {
    std::vector<RowRotation> patterns;
    for (const RowRotation& each : rotations) {
      const std::size_t dot = each.modules.rfind('.');
      RowRotation pattern{dot == std::string::npos ? each.modules : "*" + each.modules.substr(dot),
                          each.parts};
      const auto same = std::ranges::find(patterns, pattern.modules, &RowRotation::modules);
      if (same == patterns.end()) {
        patterns.push_back(std::move(pattern));
      } else if (*same != pattern) {
        return rotations;
      }
    }
    return patterns;
  }

  FolderImport import_;
  const SafetensorsFile& file_;
  const ModelConfig& config_;
  VqFormat format_;
  bool rescaled_ = false;
  DType dtype_ = DType::f16;
};

}  // namespace

ImportPlan plan_quip(const std::filesystem::path& folder, const ModelConfig& config) {
  return QuipPlanner(folder, config).plan();
}

}  // namespace vqgen

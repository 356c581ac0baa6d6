#include "quantizer/import/quip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/format/e8p.h"
#include "quantizer/import/folder_import.h"
#include "quantizer/import/quip_codes.h"
#include "quantizer/import/quip_layer.h"
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

// A codebook by its name in the config and its number beside the codes.
struct QuipCodebook {
  const char* name;
  std::int64_t number;
  int stages;
};
constexpr QuipCodebook kQuipCodebooks[] = {{"E8P12", 7, 1}, {"E8P12RVQ4B", 17, 2}};

// Layers that are several of the model, in the order of their rows.
struct Fused {
  const char* module;  // the end of its name
  const char* named;   // in the model folder
  std::vector<const char*> parts;
};
const Fused kFused[] = {{"qkv_proj", "qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                        {"upgate_proj", "gate_up_proj", {"up_proj", "gate_proj"}}};

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
    const std::string codebook = settings.member("codebook").string();
    const auto* const found = std::ranges::find_if(
        kQuipCodebooks, [&](const QuipCodebook& each) { return codebook == each.name; });
    if (found == std::end(kQuipCodebooks)) {
      settings.at("codebook")
          .fail(
              fmt::format("is '{}', and 'E8P12' and 'E8P12RVQ4B' are read; take another model, or "
                          "quantize the original with vqgen quantize",
                          codebook));
    }
    codebook_ = *found;
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
    if (settings.has("resid_scale_override")) {
      const double scale = settings.at("resid_scale_override").number(-1, 1e6);
      if (scale > 0) residual_scale_ = static_cast<float>(scale);
    }
    format_.vector_size = kE8pVectorSize;
    format_.num_codebooks = codebook_.stages;
    format_.index_bits = 16;
    format_.decoder = Decoder::e8p;
    format_.stage_scales = true;
    const bool wide = std::ranges::any_of(
        file_.tensors(), [](const TensorInfo& info) { return info.type == TensorType::bf16; });
    dtype_ = wide ? DType::bf16 : DType::f16;
  }

  void judge_codes(const TensorInfo& info, QuipLayer& layer) const {
    if (info.dtype != "I64") {
      file_.fail(info.name, fmt::format("is {} where codes of {} are I64; fetch the model again",
                                        info.dtype, codebook_.name));
    }
    const std::vector<std::int64_t>& shape = info.shape;
    const std::int64_t step = codebook_.stages * (kQuipTileColumns / kQuipWordInputs);
    const bool sized = shape.size() == 2 && shape[0] >= 1 && shape[0] <= kMostFeatures &&
                       shape[1] >= 1 && shape[1] <= kMostFeatures / kQuipWordInputs &&
                       shape[0] % kQuipTileRows == 0 && shape[1] % step == 0;
    if (!sized) {
      file_.fail(
          info.name,
          fmt::format("has shape {} where {} has [out_features, in_features / {}], "
                      "of whole tiles of 16 x 64; fetch the model again",
                      shape_text(shape), codebook_.name, kQuipWordInputs / codebook_.stages));
    }
    layer.rows = shape[0];
    layer.columns = shape[1] * kQuipWordInputs / codebook_.stages;
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
    if (number == codebook_.number) return;
    file_.fail(info.name, fmt::format("is {} where {} is {}; take another model", number,
                                      codebook_.name, codebook_.number));
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
    layer.stages = codebook_.stages;
    layer.residual_scale = residual_scale_;
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
    const QuantizedTensor sizes =
        import_.readable_sizes(format_, dtype_, layer.rows, layer.columns, info.name);
    const std::uint64_t bytes =
        import_.add_layer(shape.modules, sizes, true, info.part,
                          [&](std::string_view suffix) { return quip_writer(suffix, layer); });
    std::uint64_t before = 0;
    for (const TensorInfo* each : {layer.codes, layer.input_signs, layer.input_scales,
                                   layer.output_signs, layer.part_scales, layer.scale}) {
      if (each != nullptr) before += each->end - each->begin;
    }
    import_.plan().count({fmt::format("quip# {}", codebook_.name),
                          short_name(format_) + ", rotated", "linear layers", 1, before, bytes});
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
                                             config_.kv_heads * config_.value_head_dim};
    const std::int64_t all = of_parts[0] + of_parts[1] + of_parts[2];
    if (all == rows && config_.kv_heads > 0 && head > 0) return of_parts;
    file_.fail(module + kQidxs,
               fmt::format("has {} outputs, and the heads of {} are {}; fetch the model again",
                           rows, config_.source, all));
  }

  // Tensors of a layer, which its codes bring in; those of none are refused.
  bool is_of_layer(const TensorInfo& info) const {
    if (!import_.is_beside(
            info, {kInputSigns, kOutputSigns, kScale, kCodebook, kInputScales, kPartScales},
            kQidxs)) {
      return false;
    }
    if (info.name.ends_with(kInputScales) && !rescaled_) {
      file_.fail(info.name, fmt::format("is there, and rescale_WH of {} is not true; fetch the "
                                        "model again",
                                        config_.source));
    }
    return true;
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
  QuipCodebook codebook_ = kQuipCodebooks[0];
  float residual_scale_ = kQuipResidualScale;
  bool rescaled_ = false;
  DType dtype_ = DType::f16;
};

}  // namespace

ImportPlan plan_quip(const std::filesystem::path& folder, const ModelConfig& config) {
  return QuipPlanner(folder, config).plan();
}

}  // namespace vqgen

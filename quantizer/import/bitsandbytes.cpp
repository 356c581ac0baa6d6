#include "quantizer/import/bitsandbytes.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "quantizer/import/folder_import.h"

namespace vqgen {
namespace {

constexpr const char* kWeight = ".weight";
constexpr const char* kAbsmax = ".weight.absmax";
constexpr const char* kLevels = ".weight.quant_map";
constexpr const char* kNestedScales = ".weight.nested_absmax";
constexpr const char* kNestedLevels = ".weight.nested_quant_map";
constexpr const char* kStates[] = {".weight.quant_state.bitsandbytes__nf4",
                                   ".weight.quant_state.bitsandbytes__fp4"};
constexpr int kLevelCount = 16;
constexpr std::int64_t kNestedLevelCount = 256;
constexpr std::uint64_t kMostStateBytes = 1 << 16;

bool is_of_type(const TensorInfo& info, const char* dtype, std::uint64_t element_bytes) {
  return info.dtype == dtype &&
         info.end - info.begin == static_cast<std::uint64_t>(info.elements()) * element_bytes;
}

// A layer's tensors, once they are judged.
struct Layer {
  TensorsPointer file;
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* levels = nullptr;
  const TensorInfo* nested_scales = nullptr;  // null: scales are F32
  const TensorInfo* nested_levels = nullptr;
  std::int64_t nested_block = 0;
  float nested_offset = 0;
  QuantizedTensor sizes = {};

  std::size_t row_bytes() const { return static_cast<std::size_t>(sizes.columns) / 2; }
  std::int64_t blocks() const { return sizes.rows * (sizes.columns / sizes.format.group_inputs); }
};

// Each block's largest magnitude.
std::vector<float> block_scales(const Layer& layer) {
  if (layer.nested_scales == nullptr) return layer.file->read_finite(layer.scales->name);
  const std::vector<float> levels = layer.file->read_finite(layer.nested_levels->name);
  const std::vector<float> factors = layer.file->read_finite(layer.nested_scales->name);
  std::vector<std::byte> numbers(static_cast<std::size_t>(layer.blocks()));
  layer.file->read_bytes(*layer.scales, 0, numbers);
  std::vector<float> scales(numbers.size());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const float factor = factors[i / static_cast<std::size_t>(layer.nested_block)];
    scales[i] = levels[std::to_integer<std::size_t>(numbers[i])] * factor + layer.nested_offset;
  }
  return scales;
}

std::vector<std::uint16_t> half_scales(const Layer& layer) {
  std::vector<std::uint16_t> halves;
  for (const float scale : block_scales(layer)) {
    halves.push_back(element_from_float(DType::f16, scale));
    if (std::isfinite(element_to_float(DType::f16, halves.back()))) continue;
    layer.file->fail(layer.scales->name,
                     fmt::format("block {} has the scale {}, which f16 does not hold; quantize the "
                                 "original model with vqgen quantize",
                                 halves.size() - 1, scale));
  }
  return halves;
}

// Rows of codes, each with its scales behind them.
void write_rows(const Layer& layer, const TakeBytes& take) {
  const std::vector<std::uint16_t> halves = half_scales(layer);
  const std::size_t row_bytes = layer.row_bytes();
  const auto words = static_cast<std::size_t>(layer.sizes.row_words);
  const auto columns = static_cast<std::size_t>(layer.sizes.columns);
  const std::size_t groups = columns / static_cast<std::size_t>(layer.sizes.format.group_inputs);
  const auto scale_words =
      static_cast<std::size_t>(layer.sizes.format.group_scales().words(layer.sizes.columns));
  const auto at_a_time =
      static_cast<std::int64_t>(std::max(kCodeBytesAtATime / row_bytes, std::size_t{1}));
  std::vector<std::byte> bytes;
  std::vector<std::uint32_t> packed;
  for (std::int64_t first = 0; first < layer.sizes.rows; first += at_a_time) {
    const auto rows = static_cast<std::size_t>(std::min(at_a_time, layer.sizes.rows - first));
    bytes.resize(rows * row_bytes);
    layer.file->read_bytes(*layer.codes, static_cast<std::uint64_t>(first) * row_bytes, bytes);
    packed.assign(rows * words, 0);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto into = std::span(packed).subspan(row * words, words);
      std::memcpy(into.data(), bytes.data() + row * row_bytes, row_bytes);
      const std::uint16_t* const own =
          halves.data() + (static_cast<std::size_t>(first) + row) * groups;
      std::memcpy(into.last(scale_words).data(), own, groups * sizeof *own);
    }
    take(static_cast<std::uint64_t>(first) * words * 4, std::as_bytes(std::span(packed)));
  }
}

// All pairs of levels, the first of the upper half of a byte.
void write_pairs(const Layer& layer, const TakeBytes& take) {
  const std::vector<float> levels = layer.file->read_finite(layer.levels->name);
  std::vector<std::uint16_t> entries;
  for (std::size_t code = 0; code < kLevelCount * kLevelCount; ++code) {
    for (const std::size_t level : {code / kLevelCount, code % kLevelCount}) {
      entries.push_back(element_from_float(layer.sizes.dtype, levels[level]));
    }
  }
  take(0, std::as_bytes(std::span(entries)));
}

class BitsandbytesPlanner {
 public:
  BitsandbytesPlanner(const std::filesystem::path& folder, const ModelConfig& config)
      : import_(folder, config), file_(import_.file()), config_(config) {}

  ImportPlan plan() {
    judge_settings();
    std::vector<WeightShape> shapes;
    for (const TensorInfo& info : file_.tensors()) {
      if (info.name.ends_with(kWeight) && file_.find(info.name + ".absmax") != nullptr) {
        shapes.push_back(add_layer(info));
      } else if (!is_of_layer(info)) {
        import_.add_dense(info);
      }
    }
    QuantizationConfig quantization;
    quantization.dtype = dtype_.value_or(DType::f16);
    quantization.format = format_.value_or(VqFormat{});
    return import_.finish(std::move(quantization), shapes, kAbsmax);
  }

 private:
  void judge_settings() const {
    const JsonCursor root(*config_.quantization, config_.source,
                          std::string("/") + kQuantizationKey);
    if (root.has("load_in_4bit") && root.at("load_in_4bit").boolean()) return;
    root.fail(
        "is of bitsandbytes without load_in_4bit, and its models of 8 bits are not read; quantize "
        "the original model with vqgen quantize");
  }

  // The state of a layer, which says how its weights are stored.
  void read_state(const std::string& module, Layer& layer) {
    const TensorInfo* info = nullptr;
    for (const char* const name : kStates) {
      if (info == nullptr) info = file_.find(module + name);
    }
    if (info == nullptr) import_.beside(module, kStates[0], kWeight);
    const std::uint64_t bytes = info->end - info->begin;
    if (!is_of_type(*info, "U8", 1) || bytes > kMostStateBytes) {
      file_.fail(info->name, fmt::format("is {} {}, and no JSON in bytes; fetch the file again",
                                         info->dtype, shape_text(info->shape)));
    }
    std::string text(bytes, '\0');
    file_.read_bytes(*info, 0, std::as_writable_bytes(std::span(text)));
    const std::string source = fmt::format("{}: {}", file_.source_of(*info), info->name);
    const Json json = parse_json(text, source);
    const JsonCursor state(json, source);
    constexpr std::array kBlocks{16, 32, 64, 128, 256};
    VqFormat format;
    format.vector_size = 2;
    format.index_bits = 8;
    format.group_inputs = state.member("blocksize").integer_of(kBlocks);
    const JsonCursor shape = state.member("shape");
    for (std::size_t i = 0; i < 2; ++i) {
      (i == 0 ? layer.sizes.rows : layer.sizes.columns) =
          shape.at(i).integer(1, static_cast<double>(kMostFeatures));
    }
    if (layer.sizes.columns % format.group_inputs != 0) {
      state.at("blocksize")
          .fail(fmt::format(
              "is {}, which does not divide the {} inputs: a block is of two outputs, and no "
              "kernel reads that; quantize the original model with vqgen quantize",
              format.group_inputs, layer.sizes.columns));
    }
    constexpr const char* kTypes[] = {"float16", "bfloat16", "float32"};
    layer.sizes.dtype = state.member("dtype").choice(kTypes) == 1 ? DType::bf16 : DType::f16;
    if (state.has("nested_blocksize")) {
      layer.nested_block = state.at("nested_blocksize").integer(1, 1 << 20);
      constexpr double kMost = 3e38;
      layer.nested_offset = static_cast<float>(state.member("nested_offset").number(-kMost, kMost));
    }
    if (format_ && (format != *format_ || layer.sizes.dtype != *dtype_)) {
      state.fail(
          fmt::format("has another blocksize or dtype than the layers before it ({} in {}), and a "
                      "folder has one; quantize the original model with vqgen quantize",
                      short_name(*format_), enum_name(*dtype_)));
    }
    format_ = layer.sizes.format = format;
    dtype_ = layer.sizes.dtype;
    method_ = fmt::format("{} {}", kBitsandbytesMethod,
                          std::string_view(info->name).substr(info->name.size() - 3));
  }

  WeightShape add_layer(const TensorInfo& info) {
    const std::string module = info.name.substr(0, info.name.size() - std::strlen(kWeight));
    import_.require_no_expert(module, info);
    Layer layer{import_.pointer(), &info};
    read_state(module, layer);
    QuantizedTensor& sizes = layer.sizes;
    import_.require_shape(info, {sizes.rows * sizes.columns / 2, 1});
    if (!is_of_type(info, "U8", 1)) {
      file_.fail(info.name, fmt::format("is {} where 4 bits are stored in U8; save the model with "
                                        "bnb_4bit_quant_storage uint8",
                                        info.dtype));
    }
    layer.scales = &import_.beside(module, kAbsmax, kWeight);
    layer.levels = &file_.floats(import_.beside(module, kLevels, kWeight).name);
    import_.require_shape(*layer.levels, {kLevelCount});
    import_.require_shape(*layer.scales, {layer.blocks()});
    if (layer.nested_block > 0) {
      layer.nested_scales = &file_.floats(import_.beside(module, kNestedScales, kWeight).name);
      layer.nested_levels = &file_.floats(import_.beside(module, kNestedLevels, kWeight).name);
      import_.require_shape(*layer.nested_levels, {kNestedLevelCount});
      import_.require_shape(*layer.nested_scales,
                            {(layer.blocks() + layer.nested_block - 1) / layer.nested_block});
      if (!is_of_type(*layer.scales, "U8", 1)) {
        file_.fail(layer.scales->name, fmt::format("is {} where nested scales are U8; fetch the "
                                                   "file again",
                                                   layer.scales->dtype));
      }
    } else {
      file_.floats(layer.scales->name);
    }
    sizes = import_.readable_sizes(sizes.format, sizes.dtype, sizes.rows, sizes.columns, info.name);
    for (const char* const suffix : {".codes", ".codebooks"}) {
      import_.require_none(module, suffix, info);
    }
    const std::uint64_t bytes =
        import_.add_layer(module, sizes, false, info.part,
                          [&](std::string_view suffix) -> std::function<void(const TakeBytes&)> {
                            if (suffix == ".codes") {
                              return [layer](const TakeBytes& take) { write_rows(layer, take); };
                            }
                            return [layer](const TakeBytes& take) { write_pairs(layer, take); };
                          });
    std::uint64_t before = 0;
    for (const TensorInfo* const each :
         {layer.codes, layer.scales, layer.levels, layer.nested_scales, layer.nested_levels}) {
      if (each != nullptr) before += each->end - each->begin;
    }
    import_.plan().count({method_, short_name(sizes.format), "linear layers", 1, before, bytes});
    return {module, sizes.rows, sizes.columns};
  }

  // What stands beside the weights of a layer, which they bring in; that of none is refused.
  bool is_of_layer(const TensorInfo& info) const {
    return import_.is_beside(info, {kAbsmax}, kWeight) ||
           import_.is_beside(info, {kLevels, kNestedScales, kNestedLevels, kStates[0], kStates[1]},
                             kAbsmax);
  }

  FolderImport import_;
  const SafetensorsFile& file_;
  const ModelConfig& config_;
  std::optional<VqFormat> format_;
  std::optional<DType> dtype_;
  std::string method_;  // "bitsandbytes nf4"
};

}  // namespace

ImportPlan plan_bitsandbytes(const std::filesystem::path& folder, const ModelConfig& config) {
  return BitsandbytesPlanner(folder, config).plan();
}

}  // namespace vqgen

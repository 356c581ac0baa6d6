// The config.json of a Hugging Face model folder: what vqgen reads of it, and
// "quantization_config", by which a folder says how `vqgen quantize` made it.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/element.h"
#include "core/format/vq_format.h"
#include "core/json/json.h"

namespace vqgen {

inline constexpr const char* kQuantMethod = "vqgen";
inline constexpr const char* kQuantizationKey = "quantization_config";
inline constexpr int kModelVersion = 1;

// A format of some modules' own.
struct FormatOverride {
  std::string modules;  // a name that may hold stars (name_pattern.h)
  VqFormat format;

  static constexpr auto fields() {
    using F = FormatOverride;
    return std::make_tuple(
        field("modules", &F::modules, required(), "names of modules, by a pattern with stars"),
        field("format", &F::format, required(), "their format"));
  }
  bool operator==(const FormatOverride&) const = default;
};

// The size of the weights of some modules.
struct WeightShape {
  std::string modules;  // as above
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;

  static constexpr auto fields() {
    using F = WeightShape;
    return std::make_tuple(
        field("modules", &F::modules, required(), "names of modules, by a pattern with stars"),
        field("out_features", &F::out_features, required(1, 1 << 24), "rows of W"),
        field("in_features", &F::in_features, required(1, 1 << 24), "columns of W"));
  }
  bool operator==(const WeightShape&) const = default;
};

// Some rows of a layer's weights, and the linear layer of the model that they are.
struct RotatedPart {
  std::string name;  // beside the layer: "q_proj"
  std::int64_t out_features = 0;

  static constexpr auto fields() {
    using F = RotatedPart;
    return std::make_tuple(
        field("name", &F::name, required(), "of the linear layer, beside the module"),
        field("out_features", &F::out_features, required(1, 1 << 24), "its rows of W"));
  }
  bool operator==(const RotatedPart&) const = default;
};

// Layers whose codes stand for rotated weights: y = output_signs o H (W H^T (input_signs o x)),
// with the matrices H of <vq/layout/rotation.h>.
struct RowRotation {
  std::string modules;  // as above
  std::vector<RotatedPart> parts = {};

  static constexpr auto fields() {
    using F = RowRotation;
    return std::make_tuple(
        field("modules", &F::modules, required(), "names of modules, by a pattern with stars"),
        field("parts", &F::parts, silent(),
              "linear layers that are one module, in the order of its rows; none: it is one"));
  }
  bool operator==(const RowRotation&) const = default;
};

struct QuantizationConfig {
  std::string quant_method = kQuantMethod;
  int version = kModelVersion;
  DType dtype = DType::f16;
  VqFormat format;
  std::vector<FormatOverride> overrides = {};
  std::vector<WeightShape> weight_shapes = {};
  std::vector<RowRotation> rotations = {};
  std::vector<std::string> modules_to_not_convert = {};

  static constexpr auto fields() {
    using F = QuantizationConfig;
    return std::make_tuple(
        field("quant_method", &F::quant_method, required(), "vqgen"),
        field("version", &F::version, optional_in(1, 1e9), "of this object's format"),
        field("dtype", &F::dtype, required(), "of codebook entries and of x"),
        field("format", &F::format, required(), "of all quantized modules but the overrides'"),
        field("overrides", &F::overrides, Rule{},
              "formats of some modules; the first match counts"),
        field("weight_shapes", &F::weight_shapes, required(),
              "sizes of all quantized modules; the first match counts"),
        field("rotations", &F::rotations, silent(), "modules whose weights are rotated"),
        field("modules_to_not_convert", &F::modules_to_not_convert, required(),
              "names of the linear layers that are dense, by patterns with stars"));
  }

  const VqFormat& format_of(std::string_view module) const;
  // Null where no pattern matches.
  const WeightShape* shape_of(std::string_view module) const;
  const RowRotation* rotation_of(std::string_view module) const;  // likewise
};

// A model folder's config.json. Sizes of the decoder are 0 where the file has none.
struct ModelConfig {
  std::string source;
  std::string text;  // the file
  std::string model_type;
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_head_dim = 0;                 // "v_head_dim", else head_dim
  std::optional<Json> quantization = {};  // "quantization_config"
};

// Error(bad_input) where the file is missing, damaged, or has sizes that are no sizes; and for
// models that are more than a decoder of text.
ModelConfig read_model_config(const std::filesystem::path& folder);

// The quantization_config; Error(bad_input) where the model has none, or another tool's, or a newer
// version's, or one with unknown fields.
QuantizationConfig read_quantization(const ModelConfig& config);

// Error(bad_input), which begins with `where`, if no rotation has such sizes, and for parts that
// are not all rows.
void require_rotation(const RowRotation& rotation, const WeightShape& shape,
                      const std::string& where);

// The text of config.json with this dtype; all else stays, in order.
std::string with_dtype(const std::string& text, DType dtype);
// The text of config.json with this quantization_config and its dtype; all else stays, in order.
std::string with_quantization(const ModelConfig& config, const QuantizationConfig& quantization);

// `shapes` by exact names as few patterns: a number in a name becomes a star where all modules of
// such names have one size.
std::vector<WeightShape> shape_patterns(const std::vector<WeightShape>& shapes);

}  // namespace vqgen

#include "quantizer/bundle.h"

#include <fmt/format.h>
#include <vq/layout/codes.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/files/files.h"
#include "core/format/vq_format.h"
#include "core/json/format_version.h"
#include "core/json/json.h"
#include "core/problem/problem.h"
#include "quantizer/basis.h"
#include "quantizer/bundle_schema.h"
#include "quantizer/encode.h"
#include "quantizer/group_scales.h"

namespace vqgen {
namespace {

using Shape = std::vector<std::int64_t>;

// Collects views of the bundle's tensors; absent ones (empty vectors) leave nothing.
class Views {
 public:
  template <class T>
  void add(const std::string& name, TensorType type, Shape shape, const std::vector<T>& values) {
    if (!values.empty()) tensors.push_back(tensor_view(name, type, std::move(shape), values));
  }

  void elements(const std::string& name, DType dtype, const Shape& shape,
                const std::vector<std::uint16_t>& values, bool = false) {
    add(name, tensor_type(dtype), shape, values);
  }
  void counts(const std::string& name, std::int64_t size, std::int64_t,
              const std::vector<std::int32_t>& values, bool = false) {
    add(name, TensorType::i32, {size}, values);
  }
  void quantized(const std::string& name, const QuantizedTensor& tensor) {
    add(name + ".codes", TensorType::u32, codes_shape(tensor), tensor.codes);
    add(name + ".codebooks", tensor_type(tensor.dtype), codebooks_shape(tensor), tensor.codebooks);
    add(name + ".stage_scales", TensorType::f32, scales_shape(tensor), tensor.stage_scales);
    add(name + ".output_scales", TensorType::f32, {tensor.rows}, tensor.output_scales);
    add(name + ".smooth", TensorType::f32, {tensor.heads, tensor.columns}, tensor.smooth);
    add(name + ".mean", TensorType::f32, {tensor.heads, tensor.columns}, tensor.mean);
    add(name + ".rotation", TensorType::f32, {tensor.heads, tensor.columns, tensor.columns},
        tensor.rotation);
  }
  void gain(const std::string& name, const QuantizedTensor& tensor) {
    add(name, TensorType::f32, {unit_count(tensor)}, tensor.gain);
  }

  std::vector<TensorView> tensors;
};

Json header_of(const std::string& name, const AttentionData& data) {
  const QuantizedTensor& keys = data.keys;
  AttentionHeader header;
  header.name = name;
  header.dtype = data.dtype;
  header.keys = keys.format;
  header.values = data.values.format;
  header.cache_batch = static_cast<int>(keys.batch);
  header.kv_heads = static_cast<int>(keys.heads);
  header.tokens = keys.rows;
  header.head_dim = static_cast<int>(keys.columns);
  if (data.values.columns != keys.columns) {
    header.value_head_dim = static_cast<int>(data.values.columns);
  }
  header.batch = static_cast<int>(data.batch);
  header.query_heads = static_cast<int>(data.query_heads);
  header.max_recent_tokens = data.max_recent_tokens;
  header.max_sinks = data.max_sinks;
  return to_json(header);
}

Json header_of(const std::string& name, const LinearData& data) {
  const QuantizedTensor& weights = data.weights;
  WeightsHeader header;
  header.name = name;
  header.dtype = data.dtype;
  header.weights = weights.format;
  header.out_features = weights.rows;
  header.in_features = weights.columns;
  header.input_rows = static_cast<int>(data.input_rows);
  return to_json(header);
}

// Reads tensors whose type and shape the metadata has promised, and remembers which were read.
class BundleReader {
 public:
  explicit BundleReader(const SafetensorsFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  void elements(const std::string& name, DType dtype, const Shape& shape,
                std::vector<std::uint16_t>& bits, bool optional = false) {
    if (optional && !has(name)) return;
    expect(name, tensor_type(dtype), shape);
    file_.read_finite(name);
    bits = file_.read_bits16(name);
  }
  std::vector<float> floats(const std::string& name, const Shape& shape, bool positive = false) {
    expect(name, TensorType::f32, shape);
    std::vector<float> values = file_.read_finite(name);
    for (std::size_t i = 0; positive && i < values.size(); ++i) {
      if (values[i] > 0) continue;
      file_.fail(name, fmt::format("element {} is {}; a factor must be above 0", i, values[i]));
    }
    return values;
  }
  // Each value in 0..most.
  void counts(const std::string& name, std::int64_t size, std::int64_t most,
              std::vector<std::int32_t>& values, bool optional = false) {
    if (optional && !has(name)) return;
    expect(name, TensorType::i32, {size});
    values = file_.read_i32(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] > most) {
        file_.fail(name, fmt::format("element {} is {}; it must be 0 to {}", i, values[i], most));
      }
    }
  }

  // `tensor` comes with format, dtype and sizes; the rest is read from "<name>.*" and checked.
  void quantized(const std::string& name, QuantizedTensor& tensor) {
    const VqFormat& format = tensor.format;
    const std::string where = file_.source() + ": " + name;
    require_supported(format, where);
    const auto heads = static_cast<int>(tensor.heads);
    tensor.units = format.in_parts()
                       ? kv_units(format, heads, static_cast<int>(tensor.columns))
                       : unit_map(format, tensor.heads, tensor.rows, tensor.columns, where).units();
    tensor.row_words = format.row_words(tensor.columns);
    expect(name + ".codes", TensorType::u32, codes_shape(tensor));
    tensor.codes = file_.read_u32(name + ".codes");
    if (format.group_tokens > 0 && tensor.rows % format.group_tokens != 0) {
      file_.fail(name + ".codes", fmt::format("{} tokens are no whole groups of {}; quantize again",
                                              tensor.rows, format.group_tokens));
    }
    if (format.scale_words(tensor.columns) > 0) {
      const float least = format.has_zeros() ? 0.0f : std::numeric_limits<float>::denorm_min();
      for (const TokenScale& scale : token_scales(tensor)) {
        if (std::isfinite(scale.scale) && scale.scale >= least && std::isfinite(scale.zero))
          continue;
        file_.fail(name + ".codes",
                   fmt::format("the scale of a token is {} and its zero {}; both are finite, and "
                               "the scale is {}",
                               scale.scale, scale.zero, least == 0 ? "0 or above" : "above 0"));
      }
    }
    if (format.group_inputs > 0) {
      FloatTensor ones{tensor.batch, tensor.heads, tensor.rows, tensor.columns, {}};
      ones.data.assign(static_cast<std::size_t>(ones.row_count() * ones.columns), 1.0f);
      apply_groups(ones, tensor);
      for (const float weight : ones.data) {
        if (std::isfinite(weight)) continue;
        file_.fail(name + ".codes",
                   fmt::format("the {} of a group of inputs is {}; quantize again",
                               format.group_minima ? "scale or minimum" : "scale", weight));
      }
    }
    Codebooks codebooks{format, tensor.dtype, tensor.units, {}, {}, {}};
    elements(name + ".codebooks", tensor.dtype, codebooks_shape(tensor), codebooks.entries);
    for (std::size_t i = 0; i < codebooks.entries.size(); ++i) {
      const float value = element_to_float(tensor.dtype, codebooks.entries[i]);
      if (fits_entries(format, value)) continue;
      file_.fail(name + ".codebooks", fmt::format("element {} is {}; entries of this format are {}",
                                                  i, value, entry_numbers(format)));
    }
    if (format.decoder == Decoder::table && !format.in_parts() && has(name + ".projections")) {
      codebooks.projections = floats(
          name + ".projections", {format.num_codebooks, format.vector_size, format.vector_size});
      fold_projections(codebooks);
    }
    tensor.codebooks = std::move(codebooks.entries);
    if (format.stage_scales) {
      tensor.stage_scales = floats(name + ".stage_scales", scales_shape(tensor));
      if (!fits_stage_scales(format, tensor.stage_scales)) {
        file_.fail(name + ".stage_scales",
                   "the stages of a unit have scales that differ, where common_scale asks for one; "
                   "quantize again");
      }
    }
    if (format.output_scales) {
      tensor.output_scales = floats(name + ".output_scales", {tensor.rows});
    }
    if (format.smooth) {
      tensor.smooth = floats(name + ".smooth", {tensor.heads, tensor.columns}, true);
    }
    if (format.center) tensor.mean = floats(name + ".mean", {tensor.heads, tensor.columns});
    if (format.klt) {
      tensor.rotation = floats(name + ".rotation", {tensor.heads, tensor.columns, tensor.columns});
      const std::string fault = rotation_fault(tensor);
      if (!fault.empty()) file_.fail(name + ".rotation", fault);
    }
  }
  void gain(const std::string& name, QuantizedTensor& tensor) {
    if (tensor.format.decoder != Decoder::table || !has(name)) return;
    tensor.gain = floats(name, {unit_count(tensor)}, true);
    const std::string fault = gain_fault(tensor);
    if (!fault.empty()) file_.fail(name, fault);
  }

  void expect_all_read() const {
    for (const TensorInfo& info : file_.tensors()) {
      if (!read_.contains(info.name)) {
        file_.fail(info.name,
                   "belongs to nothing that the metadata tells of; remove it, or name it "
                   "after its item and purpose");
      }
    }
  }

 private:
  void expect(const std::string& name, TensorType type, const Shape& shape) {
    const TensorInfo& info = file_.at(name);
    if (info.type != type || info.shape != shape) {
      file_.fail(name, fmt::format("is {} {} where the metadata asks for {} {}; quantize again",
                                   info.dtype, shape_text(info.shape), enum_name(type),
                                   shape_text(shape)));
    }
    read_.insert(name);
  }

  const SafetensorsFile& file_;
  std::set<std::string> read_;
};

void require_problem(const JsonCursor& cursor, const Problem& problem) {
  validate(problem, fmt::format("{}: {}", cursor.source(), cursor.path()));
}

AttentionData read_attention(BundleReader& reader, const JsonCursor& cursor) {
  AttentionHeader header;
  read_fields(cursor, header);
  require_problem(
      cursor, AttentionDecode{header.dtype,
                              {.batch = header.cache_batch,
                               .query_heads = header.query_heads,
                               .kv_heads = header.kv_heads,
                               .head_dim = header.head_dim,
                               .tokens = header.tokens,
                               .recent_tokens = std::max(header.max_recent_tokens,
                                                         least_window(header.keys, header.values)),
                               .sinks = header.max_sinks,
                               .value_head_dim = header.value_head_dim},
                              header.keys,
                              header.values});
  if (header.batch > 0 && header.cache_batch != 1 && header.cache_batch != header.batch) {
    cursor.at("cache_batch")
        .fail(fmt::format("{} sequences for {} queries; store one for all, or "
                          "one each",
                          header.cache_batch, header.batch));
  }
  if (header.batch > 0 && header.query_heads == 0) {
    cursor.fail("queries without heads; set query_heads, or batch to 0");
  }
  if (header.values.smooth || header.values.hadamard) {
    cursor.at("values").fail("smooth and hadamard transform keys only; set them to false");
  }

  AttentionData data;
  data.dtype = header.dtype;
  data.batch = header.batch;
  data.query_heads = header.query_heads;
  data.max_recent_tokens = header.max_recent_tokens;
  data.max_sinks = header.max_sinks;
  data.keys.format = header.keys;
  data.values.format = header.values;
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    tensor->dtype = header.dtype;
    tensor->batch = header.cache_batch;
    tensor->heads = header.kv_heads;
    tensor->rows = header.tokens;
  }
  data.keys.columns = header.head_dim;
  data.values.columns = header.value_head_dim > 0 ? header.value_head_dim : header.head_dim;
  each_tensor(reader, header.name, data);
  return data;
}

LinearData read_weights(BundleReader& reader, const JsonCursor& cursor) {
  WeightsHeader header;
  read_fields(cursor, header);
  require_problem(
      cursor, Gemv{{header.dtype, {1, header.out_features, header.in_features}, header.weights}});
  LinearData data;
  data.dtype = header.dtype;
  data.input_rows = header.input_rows;
  data.weights.format = header.weights;
  data.weights.dtype = header.dtype;
  data.weights.rows = header.out_features;
  data.weights.columns = header.in_features;
  each_tensor(reader, header.name, data);
  return data;
}

}  // namespace

std::vector<std::byte> serialize_bundle(const Bundle& bundle) {
  Views views;
  Json items = Json::array();
  std::set<std::string> names;
  for (const BundleItem& item : bundle.items) {
    if (!names.insert(item.name).second) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("bundle: two items are called '{}'; rename one", item.name));
    }
    std::visit(
        [&](const auto& data) {
          each_tensor(views, item.name, data);
          items.push_back(header_of(item.name, data));
        },
        item.data);
  }
  const Json root = {{"schema", kBundleSchema}, {"items", std::move(items)}};
  return serialize_safetensors(std::move(views.tensors), {{kBundleKey, root.dump()}});
}

void write_bundle(const std::filesystem::path& path, const Bundle& bundle) {
  publish_file(path, serialize_bundle(bundle));
}

Bundle read_bundle(const std::filesystem::path& path) { return read_bundle(SafetensorsFile(path)); }

Bundle read_bundle(const SafetensorsFile& file) {
  const auto text = file.metadata().find(kBundleKey);
  if (text == file.metadata().end()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: not a bundle: the metadata has no '{}'; make one with vqgen "
                            "quantize",
                            file.source(), kBundleKey));
  }
  const std::string source = fmt::format("{}: {}", file.source(), kBundleKey);
  const Json json = parse_json(text->second, source);
  const JsonCursor root(json, source);
  format_version(root, "schema", kBundleSchema);
  root.expect_object({"schema", "items"});
  const JsonCursor items = root.member("items", "; quantize again");
  if (!items.value().is_array()) items.fail("must be an array of items");

  Bundle bundle;
  BundleReader reader(file);
  std::set<std::string> names;
  for (std::size_t i = 0; i < items.value().size(); ++i) {
    const JsonCursor item = items.at(i);
    for (const char* key : {"name", "kind"}) {
      if (!item.has(key)) item.fail(fmt::format("'{}' is missing", key));
    }
    const std::string name = item.at("name").string();
    if (!names.insert(name).second) item.at("name").fail("is there twice; rename one item");
    const auto kind = static_cast<BundleKind>(item.at("kind").choice(enum_names<BundleKind>));
    if (kind == BundleKind::attention) {
      bundle.items.push_back({name, read_attention(reader, item)});
    } else {
      bundle.items.push_back({name, read_weights(reader, item)});
    }
  }
  reader.expect_all_read();
  return bundle;
}

}  // namespace vqgen

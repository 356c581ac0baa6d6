#include <fmt/format.h>
#include <vq/layout/codes.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/format/entries.h"
#include "core/json/json.h"
#include "core/problem/problem.h"
#include "quantizer/bundle.h"
#include "quantizer/bundle_schema.h"
#include "quantizer/codebooks.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

using Shape = std::vector<std::int64_t>;

// Reads tensors whose type and shape the metadata has promised, and remembers which were read.
class BundleReader {
 public:
  explicit BundleReader(const SafetensorsFile& file) : file_(file) {}

  const std::string& source() const { return file_.source(); }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  std::vector<std::uint16_t> elements(const std::string& name, DType dtype, const Shape& shape) {
    expect(name, tensor_type(dtype), shape);
    require_finite(file_.read_floats(name), file_.source(), name);
    return file_.read_bits16(name);
  }
  std::vector<std::uint16_t> optional_elements(const std::string& name, DType dtype,
                                               const Shape& shape) {
    return has(name) ? elements(name, dtype, shape) : std::vector<std::uint16_t>{};
  }
  // Elements that may stand among the entries of a format.
  std::vector<std::uint16_t> entries(const std::string& name, DType dtype, const Shape& shape,
                                     const VqFormat& format) {
    std::vector<std::uint16_t> bits = elements(name, dtype, shape);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (const float value = element_to_float(dtype, bits[i]); !fits_entries(format, value)) {
        file_.fail(name, fmt::format("element {} is {}; entries of this format are {}", i, value,
                                     entry_numbers(format)));
      }
    }
    return bits;
  }
  std::vector<float> floats(const std::string& name, const Shape& shape) {
    expect(name, TensorType::f32, shape);
    std::vector<float> values = file_.read_floats(name);
    require_finite(values, file_.source(), name);
    return values;
  }
  std::vector<float> positive_floats(const std::string& name, const Shape& shape) {
    std::vector<float> values = floats(name, shape);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] <= 0) {
        file_.fail(name, fmt::format("element {} is {}; a factor must be above 0", i, values[i]));
      }
    }
    return values;
  }
  std::vector<std::uint32_t> words(const std::string& name, const Shape& shape) {
    expect(name, TensorType::u32, shape);
    return file_.read_u32(name);
  }
  // Each value in 0..most.
  std::vector<std::int32_t> counts(const std::string& name, std::int64_t size, std::int64_t most) {
    expect(name, TensorType::i32, {size});
    std::vector<std::int32_t> values = file_.read_i32(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] > most) {
        file_.fail(name, fmt::format("element {} is {}; it must be 0 to {}", i, values[i], most));
      }
    }
    return values;
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
                                   type_name(info.type), shape_text(info.shape), type_name(type),
                                   shape_text(shape)));
    }
    read_.insert(name);
  }

  const SafetensorsFile& file_;
  std::set<std::string> read_;
};

// `tensor` comes with format, dtype and sizes; the rest is read from "<name>.*" and checked.
void read_tensor(BundleReader& reader, const std::string& name, QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  const std::string where = reader.source() + ": " + name;
  require_supported(format, where);
  tensor.units = unit_map(format, tensor.heads, tensor.rows, tensor.columns, where).units();
  tensor.row_words =
      vq::row_words(tensor.columns, format.vector_size, format.residuals, format.index_bits);
  tensor.codes = reader.words(name + ".codes", codes_shape(tensor));
  Codebooks codebooks{format, tensor.dtype, tensor.units, {}, {}, {}};
  const bool lattice = format.decoder == Decoder::e8p;
  const Shape shape{tensor.units, format.residuals, format.entries(), format.vector_size};
  codebooks.entries = reader.entries(name + ".codebooks", tensor.dtype, shape, format);
  if (!lattice && reader.has(name + ".projections")) {
    codebooks.projections = reader.floats(
        name + ".projections", {format.residuals, format.vector_size, format.vector_size});
    fold_projections(codebooks);
  }
  tensor.codebooks = std::move(codebooks.entries);
  if (format.stage_scales) {
    tensor.stage_scales = reader.floats(name + ".stage_scales", {tensor.units, format.residuals});
  }
  if (format.output_scales) {
    tensor.output_scales = reader.floats(name + ".output_scales", {tensor.rows});
  }
  if (format.smooth) {
    tensor.smooth = reader.positive_floats(name + ".smooth", {tensor.heads, tensor.columns});
  }
}

void require_problem(const JsonCursor& cursor, const Problem& problem) {
  validate(problem, fmt::format("{}: {}", cursor.source(), cursor.path()));
}

AttentionData read_attention(BundleReader& reader, const JsonCursor& cursor) {
  AttentionHeader header;
  read_fields(cursor, header);
  const bool shared = header.cache_batch == 1 && header.batch != 1;
  require_problem(
      cursor, AttentionDecode{header.dtype,
                              {header.batch, header.query_heads, header.kv_heads, header.head_dim,
                               header.tokens, header.max_window, header.max_sinks, shared},
                              header.keys,
                              header.values});
  if (header.batch > 0 && !shared && header.cache_batch != header.batch) {
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
  data.max_window = header.max_window;
  data.max_sinks = header.max_sinks;
  data.keys.format = header.keys;
  data.values.format = header.values;
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    tensor->dtype = header.dtype;
    tensor->batch = header.cache_batch;
    tensor->heads = header.kv_heads;
    tensor->rows = header.tokens;
    tensor->columns = header.head_dim;
  }
  const std::string& name = header.name;
  read_tensor(reader, name + ".keys", data.keys);
  read_tensor(reader, name + ".values", data.values);
  if (header.batch > 0) {
    data.queries = reader.elements(name + ".queries", header.dtype,
                                   {header.batch, header.query_heads, header.head_dim});
    data.lengths = reader.counts(name + ".lengths", header.batch, header.tokens);
    if (reader.has(name + ".windows")) {
      data.windows = reader.counts(name + ".windows", header.batch, header.max_window);
    }
    if (reader.has(name + ".sinks")) {
      data.sinks = reader.counts(name + ".sinks", header.batch, header.max_sinks);
    }
  }
  const std::int64_t slots = header.max_sinks + header.max_window;
  if (slots > 0) {
    const Shape raw{header.cache_batch, header.kv_heads, slots, header.head_dim};
    data.raw_keys = reader.elements(name + ".raw_keys", header.dtype, raw);
    data.raw_values = reader.elements(name + ".raw_values", header.dtype, raw);
  }
  const Shape whole{header.cache_batch, header.kv_heads, header.tokens, header.head_dim};
  data.original_keys = reader.optional_elements(name + ".keys.original", header.dtype, whole);
  data.original_values = reader.optional_elements(name + ".values.original", header.dtype, whole);
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
  const std::string& name = header.name;
  read_tensor(reader, name + ".weights", data.weights);
  if (header.input_rows > 0) {
    data.x = reader.elements(name + ".x", header.dtype, {header.input_rows, header.in_features});
  }
  data.original_weights = reader.optional_elements(name + ".weights.original", header.dtype,
                                                   {header.out_features, header.in_features});
  return data;
}

}  // namespace

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
  root.expect_object({"schema", "items"});
  if (!root.has("schema") || !root.has("items")) root.fail("needs 'schema' and 'items'");
  if (const auto schema = root.at("schema").integer(0, 1e9); schema != kBundleSchema) {
    root.at("schema").fail(
        fmt::format("version {} is not {}; quantize again with this vqgen", schema, kBundleSchema));
  }
  const JsonCursor items = root.at("items");
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
    if (!names.insert(name).second) item.at("name").fail("stands twice; rename one item");
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

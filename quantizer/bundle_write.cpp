#include <fmt/format.h>

#include <set>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/json.h"
#include "quantizer/bundle.h"
#include "quantizer/bundle_schema.h"

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

  void add(const std::string& name, const QuantizedTensor& tensor) {
    const VqFormat& format = tensor.format;
    add(name + ".codes", TensorType::u32, codes_shape(tensor), tensor.codes);
    add(name + ".codebooks", tensor_type(tensor.dtype),
        {tensor.units, format.residuals, format.entries(), format.vector_size}, tensor.codebooks);
    add(name + ".stage_scales", TensorType::f32, {tensor.units, format.residuals},
        tensor.stage_scales);
    add(name + ".output_scales", TensorType::f32, {tensor.rows}, tensor.output_scales);
    add(name + ".smooth", TensorType::f32, {tensor.heads, tensor.columns}, tensor.smooth);
  }

  std::vector<TensorView> tensors;
};

Json add_item(const std::string& name, const AttentionData& data, Views& views) {
  const QuantizedTensor& keys = data.keys;
  const TensorType element = tensor_type(data.dtype);
  const std::int64_t slots = data.max_sinks + data.max_window;
  views.add(name + ".keys", keys);
  views.add(name + ".values", data.values);
  views.add(name + ".queries", element, {data.batch, data.query_heads, keys.columns}, data.queries);
  views.add(name + ".lengths", TensorType::i32, {data.batch}, data.lengths);
  views.add(name + ".windows", TensorType::i32, {data.batch}, data.windows);
  views.add(name + ".sinks", TensorType::i32, {data.batch}, data.sinks);
  const Shape raw{keys.batch, keys.heads, slots, keys.columns};
  views.add(name + ".raw_keys", element, raw, data.raw_keys);
  views.add(name + ".raw_values", element, raw, data.raw_values);
  const Shape whole{keys.batch, keys.heads, keys.rows, keys.columns};
  views.add(name + ".keys.original", element, whole, data.original_keys);
  views.add(name + ".values.original", element, whole, data.original_values);

  AttentionHeader header;
  header.name = name;
  header.dtype = data.dtype;
  header.keys = keys.format;
  header.values = data.values.format;
  header.cache_batch = static_cast<int>(keys.batch);
  header.kv_heads = static_cast<int>(keys.heads);
  header.tokens = keys.rows;
  header.head_dim = static_cast<int>(keys.columns);
  header.batch = static_cast<int>(data.batch);
  header.query_heads = static_cast<int>(data.query_heads);
  header.max_window = data.max_window;
  header.max_sinks = data.max_sinks;
  return to_json(header);
}

Json add_item(const std::string& name, const LinearData& data, Views& views) {
  const QuantizedTensor& weights = data.weights;
  const TensorType element = tensor_type(data.dtype);
  views.add(name + ".weights", weights);
  views.add(name + ".x", element, {data.input_rows, weights.columns}, data.x);
  views.add(name + ".weights.original", element, {weights.rows, weights.columns},
            data.original_weights);

  WeightsHeader header;
  header.name = name;
  header.dtype = data.dtype;
  header.weights = weights.format;
  header.out_features = weights.rows;
  header.in_features = weights.columns;
  header.input_rows = static_cast<int>(data.input_rows);
  return to_json(header);
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
    items.push_back(
        std::visit([&](const auto& data) { return add_item(item.name, data, views); }, item.data));
  }
  const Json root = {{"schema", kBundleSchema}, {"items", std::move(items)}};
  return serialize_safetensors(std::move(views.tensors), {{kBundleKey, root.dump()}});
}

void write_bundle(const std::filesystem::path& path, const Bundle& bundle) {
  publish_file(path, serialize_bundle(bundle));
}

}  // namespace vqgen

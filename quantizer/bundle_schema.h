// The JSON of a bundle's metadata, as aggregates, and the shapes of its tensors. Only readers and
// writers of bundles and model folders include this.
#pragma once

#include <string>

#include "core/ceil_div.h"
#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"

namespace vqgen {

inline constexpr const char* kBundleKey = "vqgen.bundle";
inline constexpr int kBundleSchema = 1;

// Shape of a tensor's codes, whose other sizes are set. A layout with groups is an array of them,
// [batch, heads, groups, runs, rows of a group, words of a run].
inline std::vector<std::int64_t> codes_shape(const QuantizedTensor& tensor) {
  const CodeLayout& layout = tensor.format.layout;
  if (layout.plain()) return {tensor.batch, tensor.heads, tensor.rows, tensor.row_words};
  return {tensor.batch,
          tensor.heads,
          ceil_div(tensor.rows, layout.rows),
          ceil_div(tensor.row_words, layout.words),
          layout.rows,
          layout.words};
}

// Shape of a tensor's codebooks: an array; for rows in parts all elements, part after part.
inline std::vector<std::int64_t> codebooks_shape(const QuantizedTensor& tensor) {
  const VqFormat& f = tensor.format;
  if (!f.in_parts()) return {tensor.units, f.num_codebooks, f.entries(), f.vector_size};
  return {
      kv_codebook_elements(f, static_cast<int>(tensor.heads), static_cast<int>(tensor.columns))};
}

// Shape of a tensor's stage scales, in the order of its codebooks.
inline std::vector<std::int64_t> scales_shape(const QuantizedTensor& tensor) {
  const VqFormat& f = tensor.format;
  if (!f.in_parts()) return {tensor.units, f.num_codebooks};
  return {kv_stages(f, static_cast<int>(tensor.heads), static_cast<int>(tensor.columns))};
}

enum class BundleKind { attention, weights };
template <>
inline constexpr auto enum_names<BundleKind> = std::array{"attention", "weights"};

struct AttentionHeader {
  std::string name;
  BundleKind kind = BundleKind::attention;
  DType dtype = DType::f16;
  VqFormat keys, values;
  int cache_batch = 1;
  int kv_heads = 0;
  std::int64_t tokens = 0;
  int head_dim = 0;
  int batch = 0;
  int query_heads = 0;
  int max_recent_tokens = 0;
  int max_sinks = 0;
  int value_head_dim = 0;  // 0: head_dim

  static constexpr auto fields() {
    using H = AttentionHeader;
    return std::make_tuple(
        field("name", &H::name, required(), "the item's name, unique in the bundle"),
        field("kind", &H::kind, required(), "what the item is"),
        field("dtype", &H::dtype, required(), "of entries, queries and originals"),
        field("keys", &H::keys, required(), "format of the keys"),
        field("values", &H::values, required(), "format of the values"),
        field("cache_batch", &H::cache_batch, required(1, 65535), "sequences stored"),
        field("kv_heads", &H::kv_heads, required(1, 65535), "heads of the cache"),
        field("tokens", &H::tokens, required(1, 2147483647), "tokens a sequence stored"),
        field("head_dim", &H::head_dim, required(1, 1024), "channels a head"),
        field("value_head_dim", &H::value_head_dim, silent_in(1, 1024),
              "channels a head of values; without the field, head_dim"),
        field("batch", &H::batch, optional_in(0, 65535), "queries stored; 0 without"),
        field("query_heads", &H::query_heads, optional_in(0, 65535), "heads of a query"),
        field("max_recent_tokens", &H::max_recent_tokens, optional_in(0, kMostWindow),
              "newest tokens kept raw, at most"),
        field("max_sinks", &H::max_sinks, optional_in(0, 64), "first tokens kept raw, at most"));
  }
};

struct WeightsHeader {
  std::string name;
  BundleKind kind = BundleKind::weights;
  DType dtype = DType::f16;
  VqFormat weights;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  int input_rows = 0;

  static constexpr auto fields() {
    using H = WeightsHeader;
    return std::make_tuple(
        field("name", &H::name, required(), "the item's name, unique in the bundle"),
        field("kind", &H::kind, required(), "what the item is"),
        field("dtype", &H::dtype, required(), "of entries, inputs and originals"),
        field("weights", &H::weights, required(), "format of the weights"),
        field("out_features", &H::out_features, required(1, 1 << 24), "rows of W"),
        field("in_features", &H::in_features, required(1, 1 << 24), "columns of W"),
        field("input_rows", &H::input_rows, optional_in(0, 65535), "rows of x; 0 without"));
  }
};

// The tensors of an item by name, element type and shape: what the reader reads and the writer
// writes. What need not be there is marked as optional.
template <class Io, class Data>
void each_tensor(Io& io, const std::string& name, Data& data) {
  using Shape = std::vector<std::int64_t>;
  const bool optional = true;
  if constexpr (requires { data.weights; }) {
    const QuantizedTensor& weights = data.weights;
    io.quantized(name + ".weights", data.weights);
    if (data.input_rows > 0) {
      io.elements(name + ".x", data.dtype, {data.input_rows, weights.columns}, data.x);
    }
    io.elements(name + ".weights.original", data.dtype, {weights.rows, weights.columns},
                data.original_weights, optional);
  } else {
    const QuantizedTensor& keys = data.keys;
    io.quantized(name + ".keys", data.keys);
    io.gain(name + ".keys.gain", data.keys);
    io.quantized(name + ".values", data.values);
    if (data.batch > 0) {
      io.elements(name + ".queries", data.dtype, {data.batch, data.query_heads, keys.columns},
                  data.queries);
      io.counts(name + ".lengths", data.batch, keys.rows, data.lengths);
      io.counts(name + ".recent_counts", data.batch, data.max_recent_tokens, data.recent_counts,
                optional);
      io.counts(name + ".sinks", data.batch, data.max_sinks, data.sinks, optional);
    }
    if (const std::int64_t slots = data.max_sinks + data.max_recent_tokens; slots > 0) {
      const auto raw = [&](const QuantizedTensor& tensor) {
        return Shape{keys.batch, keys.heads, slots, tensor.columns};
      };
      io.elements(name + ".raw_keys", data.dtype, raw(keys), data.raw_keys);
      io.elements(name + ".raw_values", data.dtype, raw(data.values), data.raw_values);
    }
    const auto whole = [&](const QuantizedTensor& tensor) {
      return Shape{keys.batch, keys.heads, keys.rows, tensor.columns};
    };
    io.elements(name + ".keys.original", data.dtype, whole(keys), data.original_keys, optional);
    io.elements(name + ".values.original", data.dtype, whole(data.values), data.original_values,
                optional);
  }
}

}  // namespace vqgen

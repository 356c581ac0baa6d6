// The C functions of bundles.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json/json.h"
#include "core/suggest.h"
#include "quantizer/basis.h"
#include "quantizer/bundle.h"
#include "runtime/library/last_error.h"

using namespace vqgen::library;

struct vqgen_bundle {
  struct Item {
    vqgen::BundleItem read;
    std::optional<vqgen::QuantizedTensor> longer_keys;  // with the gain, where there is one
  };
  std::string source;
  std::vector<Item> items;
  std::string description;
};

namespace {

using vqgen::Error;
using vqgen::ErrorKind;
using vqgen::Json;
using vqgen::QuantizedTensor;

using Bytes = std::span<const std::byte>;
using Named = std::pair<std::string_view, Bytes>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The tensors of an operand, by the names of ops' arguments.
void add_operand(std::vector<Named>& to, bool values, const QuantizedTensor& tensor) {
  const auto name = [values](std::string_view key, std::string_view value) {
    return values ? value : key;
  };
  to.emplace_back(name("keys.codes", "values.codes"), bytes_of(tensor.codes));
  to.emplace_back(name("keys.codebooks", "values.codebooks"), bytes_of(tensor.codebooks));
  to.emplace_back(name("keys.scales", "values.scales"), bytes_of(tensor.stage_scales));
  to.emplace_back(name("key_mean", "value_mean"), bytes_of(tensor.mean));
  to.emplace_back(name("key_rotation", "value_rotation"), bytes_of(tensor.rotation));
  if (!values) to.emplace_back("key_smooth", bytes_of(tensor.smooth));
}

// What an item has for an op; nothing for an op of the other kind.
std::vector<Named> tensors_for(const vqgen_bundle::Item& item, std::string_view op) {
  std::vector<Named> out;
  const bool reads = op == "attention_decode" || op == "kv_dequantize";
  if (const auto* cache = std::get_if<vqgen::AttentionData>(&item.read.data)) {
    if (!reads && op != "kv_append") return out;
    add_operand(out, false, reads && item.longer_keys ? *item.longer_keys : cache->keys);
    add_operand(out, true, cache->values);
  } else if (op == "gemm" || op == "gemv") {
    const QuantizedTensor& weights = std::get<vqgen::LinearData>(item.read.data).weights;
    out = {{"weights.codes", bytes_of(weights.codes)},
           {"weights.codebooks", bytes_of(weights.codebooks)},
           {"weights.scales", bytes_of(weights.stage_scales)},
           {"output_scales", bytes_of(weights.output_scales)}};
  }
  return out;
}

// What a config takes of an item.
Json described(const vqgen_bundle::Item& item) {
  if (const auto* cache = std::get_if<vqgen::AttentionData>(&item.read.data)) {
    Json json = {{"name", item.read.name},
                 {"kind", "attention"},
                 {"dtype", vqgen::enum_name(cache->keys.dtype)},
                 {"kv_heads", cache->keys.heads},
                 {"head_dim", cache->keys.columns},
                 {"tokens", cache->keys.rows},
                 {"keys", to_json(cache->keys.format)},
                 {"values", to_json(cache->values.format)}};
    if (cache->values.columns != cache->keys.columns) {
      json["value_head_dim"] = cache->values.columns;
    }
    return json;
  }
  const QuantizedTensor& weights = std::get<vqgen::LinearData>(item.read.data).weights;
  return {{"name", item.read.name},
          {"kind", "weights"},
          {"dtype", vqgen::enum_name(weights.dtype)},
          {"out_features", weights.rows},
          {"in_features", weights.columns},
          {"weights", to_json(weights.format)}};
}

const vqgen_bundle::Item& item_of(const vqgen_bundle& bundle, std::string_view name) {
  std::vector<std::string> names;
  for (const vqgen_bundle::Item& each : bundle.items) {
    if (each.read.name == name) return each;
    names.push_back(each.read.name);
  }
  throw Error(ErrorKind::bad_input, fmt::format("{}: it has no item '{}'{}", bundle.source, name,
                                                vqgen::did_you_mean(name, names)));
}

// A misspelt name is no tensor that the item happens to lack.
void require_argument(const char* op, std::string_view argument) {
  std::vector<std::string> names;
  for (const Json& each : Json::parse(vqgen_arguments(op))) names.push_back(each.at("name"));
  if (std::ranges::find(names, argument) != names.end()) return;
  throw Error(ErrorKind::bad_input, fmt::format("{} takes no argument '{}'{}", op, argument,
                                                vqgen::did_you_mean(argument, names)));
}

}  // namespace

vqgen_status vqgen_bundle_open(const char* path, vqgen_bundle** bundle) {
  return guarded({path, bundle}, [&] {
    *bundle = nullptr;
    auto made = std::make_unique<vqgen_bundle>();
    made->source = path;
    Json items = Json::array();
    for (vqgen::BundleItem& each : vqgen::read_bundle(std::filesystem::path(path)).items) {
      vqgen_bundle::Item item{std::move(each), std::nullopt};
      if (const auto* cache = std::get_if<vqgen::AttentionData>(&item.read.data);
          cache != nullptr && !cache->keys.gain.empty()) {
        item.longer_keys = cache->keys;
        take_gain(*item.longer_keys);
      }
      items.push_back(described(item));
      made->items.push_back(std::move(item));
    }
    made->description = items.dump();
    *bundle = made.release();
    return VQGEN_OK;
  });
}

const char* vqgen_bundle_description(const vqgen_bundle* bundle) {
  return bundle == nullptr ? "" : bundle->description.c_str();
}

vqgen_status vqgen_bundle_tensor(const vqgen_bundle* bundle, const char* item, const char* op,
                                 const char* argument, const void** data, size_t* bytes) {
  return guarded({bundle, item, op, argument, data, bytes}, [&] {
    *data = nullptr;
    *bytes = 0;
    const std::vector<Named> tensors = tensors_for(item_of(*bundle, item), op);
    if (tensors.empty()) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: item '{}' has nothing for the op '{}'; it is one of "
                              "attention_decode, kv_append and kv_dequantize for a cache, gemv and "
                              "gemm for weights",
                              bundle->source, item, op));
    }
    require_argument(op, argument);
    for (const auto& [name, held] : tensors) {
      if (name != argument || held.empty()) continue;
      *data = held.data();
      *bytes = held.size();
    }
    return VQGEN_OK;
  });
}

void vqgen_bundle_release(vqgen_bundle* bundle) { delete bundle; }

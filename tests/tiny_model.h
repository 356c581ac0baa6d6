// A made-up model folder of two layers, as Hugging Face has them, in two shards.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/format/element.h"
#include "core/json/json.h"
#include "tests/write_safetensors.h"

namespace vqgen {

struct TinyModel {
  struct Tensor {
    std::string shard;
    TensorType type = TensorType::f16;
    std::vector<std::int64_t> shape;
    std::vector<std::uint16_t> bits;
  };

  Json config = {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
                 {"torch_dtype", "float32"}, {"num_hidden_layers", 2},
                 {"hidden_size", 64},        {"intermediate_size", 128},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 32},         {"rms_norm_eps", 1e-5}};
  std::map<std::string, Tensor> tensors;

  // Numbers that look random, and are the same in each run.
  static std::vector<std::uint16_t> numbers(std::int64_t count, std::uint32_t seed) {
    std::vector<std::uint16_t> bits;
    for (std::int64_t i = 0; i < count; ++i) {
      seed = seed * 1664525u + 1013904223u;
      bits.push_back(element_from_float(DType::f16, static_cast<float>(seed >> 16) / 65536 - 0.5f));
    }
    return bits;
  }
  void add(const std::string& name, const std::string& shard, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    const auto seed = static_cast<std::uint32_t>(tensors.size() + 1);
    tensors[name] = {shard, TensorType::f16, std::move(shape), numbers(count, seed)};
  }

  explicit TinyModel(int layers = 2) {
    config["num_hidden_layers"] = layers;
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    add("model.embed_tokens.weight", first, {32, 64});
    add("lm_head.weight", second, {32, 64});
    add("model.norm.weight", second, {63});  // no whole number of words
    for (int layer = 0; layer < layers; ++layer) {
      const std::string stem = "model.layers." + std::to_string(layer) + ".";
      const std::string& shard = 2 * layer < layers ? first : second;
      add(stem + "self_attn.q_proj.weight", shard, {64, 64});
      add(stem + "self_attn.q_proj.bias", shard, {64});
      add(stem + "self_attn.k_proj.weight", shard, {32, 64});
      add(stem + "mlp.up_proj.weight", shard, {128, 64});
      add(stem + "mlp.down_proj.weight", shard, {64, 128});
      add(stem + "input_layernorm.weight", shard, {64});
    }
  }

  // Writes config.json, shards, index, and a tokenizer's file.
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::map<std::string, std::vector<TensorView>> shards;
    Json map = Json::object();
    for (const auto& [name, tensor] : tensors) {
      shards[tensor.shard].push_back(tensor_view(name, tensor.type, tensor.shape, tensor.bits));
      map[name] = tensor.shard;
    }
    for (const auto& [name, views] : shards) {
      write_safetensors(folder / name, views, {{"format", "pt"}});
    }
    publish_text(folder / "model.safetensors.index.json",
                 Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
    publish_text(folder / "config.json", config.dump(1));
    publish_text(folder / "tokenizer.json", "{}\n");
  }
};

}  // namespace vqgen

#include "quantizer/import/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "core/error.h"
#include "quantizer/model_config.h"

namespace vqgen {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", "mistral", "LlamaForCausalLM", true, false, false},
    {"qwen2", "qwen2", "", "Qwen2ForCausalLM", false, true, false},
    {"qwen3", "qwen3", "", "Qwen3ForCausalLM", false, false, true},
    {"llama",
     "mixtral",
     "",
     "MixtralForCausalLM",
     true,
     false,
     false,
     "block_sparse_moe",
     {"w1", "w3", "w2"},
     "num_local_experts"},
    {"qwen3moe",
     "qwen3_moe",
     "",
     "Qwen3MoeForCausalLM",
     false,
     false,
     true,
     "mlp",
     {"gate_proj", "up_proj", "down_proj"},
     "num_experts",
     true}};

constexpr const char* kLike =
    "give --like HF_DIR, a folder with the config.json of the unquantized model";

// What follows "llama." in the keys that a config.json is made of.
const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys{"block_count",
                                          "context_length",
                                          "embedding_length",
                                          "feed_forward_length",
                                          "attention.head_count",
                                          "attention.head_count_kv",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "rope.dimension_count",
                                          "rope.freq_base",
                                          "rope.scaling.type",
                                          "rope.scaling.factor",
                                          "vocab_size"};
  return keys;
}

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file), root_(file.metadata()) {}

  GgufConfig read(const std::filesystem::path& like, DType dtype) {
    read_architecture();
    read_sizes();
    config_.text = with_dtype(like.empty() ? own_text() : text_of(like), dtype);
    return config_;
  }

 private:
  std::string key(const char* name) const {
    return fmt::format("{}.{}", config_.architecture->name, name);
  }
  std::int64_t size(const char* name, std::int64_t otherwise = 0) const {
    constexpr double kMost = 1 << 24;
    if (otherwise > 0 && !root_.has(key(name))) return otherwise;
    return root_.member(key(name), "; fetch the file again").integer(1, kMost);
  }
  // As short as the number is in the config that it came from.
  double number(const char* name, std::optional<double> otherwise = {}) const {
    if (otherwise && !root_.has(key(name))) return *otherwise;
    const JsonCursor at = root_.member(key(name), "; fetch the file again");
    const auto value = static_cast<float>(at.number(0, 3e38));
    return std::strtod(fmt::format("{}", value).c_str(), nullptr);
  }

  void read_architecture() {
    const JsonCursor at = root_.member("general.architecture", "; fetch the file again");
    const std::string name = at.string();
    const std::string count = name + ".expert_count";
    const bool mixture = root_.has(count) && root_.at(count).integer(0, 1e9) > 0;
    for (const GgufArchitecture& each : kArchitectures) {
      if (name != each.name) continue;
      if (config_.architecture == nullptr || mixture) config_.architecture = &each;
    }
    if (config_.architecture != nullptr) return;
    at.fail(
        fmt::format("is '{}', and llama (also Mistral and Mixtral), qwen2, qwen3 and qwen3moe are "
                    "imported; quantize the original model with vqgen quantize",
                    name));
  }

  void read_sizes() {
    config_.layers = size("block_count");
    if (config_.layers > std::ssize(file_.tensors())) {
      root_.at(key("block_count"))
          .fail(fmt::format("is {}, and the file has {} tensors; fetch it again", config_.layers,
                            file_.tensors().size()));
    }
    config_.hidden = size("embedding_length");
    config_.intermediate = size("feed_forward_length");
    if (config_.architecture->mixture != nullptr) {
      config_.experts = size("expert_count");
      config_.experts_per_token = size("expert_used_count");
      config_.expert_intermediate = config_.architecture->own_intermediate
                                        ? size("expert_feed_forward_length")
                                        : config_.intermediate;
    }
    config_.heads = size("attention.head_count");
    config_.kv_heads = size("attention.head_count_kv", config_.heads);
    config_.head_dim =
        size("attention.key_length", std::max<std::int64_t>(config_.hidden / config_.heads, 1));
    require_same("attention.value_length");
    require_same("rope.dimension_count");
    if (config_.head_dim % 2 != 0) {
      root_.fail(fmt::format("heads have {} channels, and RoPE takes pairs; fetch the file again",
                             config_.head_dim));
    }
    const GgufTensor* const embedding = file_.find("token_embd.weight");
    if (embedding == nullptr) file_.fail("token_embd.weight", "is not there; fetch the file again");
    config_.vocabulary = embedding->shape.front();
    config_.tied = file_.find("output.weight") == nullptr;
  }
  void require_same(const char* name) const {
    if (const std::int64_t value = size(name, config_.head_dim); value != config_.head_dim) {
      root_.at(key(name)).fail(
          fmt::format("is {} where heads have {} channels, which is not "
                      "imported; quantize the original model with vqgen "
                      "quantize",
                      value, config_.head_dim));
    }
  }

  // A model without experts may say so.
  bool is_known_of_experts(const std::string& name) const {
    if (name == "expert_feed_forward_length") return config_.architecture->own_intermediate;
    if (name != "expert_count" && name != "expert_used_count") return false;
    return config_.experts > 0 || root_.at(key(name.c_str())).value() == 0;
  }

  void require_known() const {
    const std::string prefix = config_.architecture->name + std::string(".");
    for (const auto& [name, unused] : root_.value().items()) {
      const std::string rest = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
      if (rest.empty() || known_keys().contains(rest) || is_known_of_experts(rest)) continue;
      root_.at(name).fail(fmt::format("is a setting that no config.json is made of; {}", kLike));
    }
    if (file_.find("rope_freqs.weight") != nullptr) {
      file_.fail("rope_freqs.weight",
                 fmt::format("scales RoPE in a way that no config.json is made of; {}", kLike));
    }
    if (!config_.architecture->biases && file_.find("blk.0.attn_q.bias") != nullptr) {
      file_.fail("blk.0.attn_q.bias",
                 fmt::format("is a bias that no config.json is made of; {}", kLike));
    }
  }

  std::string own_text() const {
    require_known();
    Ordered json;
    json["architectures"] = {config_.architecture->model_class};
    json["model_type"] = config_.architecture->model_type;
    json["num_hidden_layers"] = config_.layers;
    json["hidden_size"] = config_.hidden;
    json["intermediate_size"] = config_.intermediate;
    if (config_.experts > 0) {
      json[config_.architecture->experts_key] = config_.experts;
      json["num_experts_per_tok"] = config_.experts_per_token;
    }
    if (config_.architecture->own_intermediate) {
      json["moe_intermediate_size"] = config_.expert_intermediate;
      // What llama.cpp does with this architecture, whatever the file says.
      json["norm_topk_prob"] = true;
    }
    json["num_attention_heads"] = config_.heads;
    json["num_key_value_heads"] = config_.kv_heads;
    json["head_dim"] = config_.head_dim;
    json["vocab_size"] = config_.vocabulary;
    json["max_position_embeddings"] = size("context_length");
    json["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon");
    json["rope_theta"] = number("rope.freq_base", 10000);
    add_rope_scaling(json);
    json["hidden_act"] = "silu";
    json["tie_word_embeddings"] = config_.tied;
    for (const char* token : {"bos", "eos"}) {
      const std::string id = fmt::format("tokenizer.ggml.{}_token_id", token);
      if (root_.has(id)) json[token + std::string("_token_id")] = root_.at(id).integer(0, 1e9);
    }
    return json.dump();
  }
  void add_rope_scaling(Ordered& json) const {
    const std::string type = key("rope.scaling.type");
    if (!root_.has(type)) return;
    const std::string name = root_.at(type).string();
    if (name == "none") return;
    if (name != "linear") {
      root_.at(type).fail(fmt::format("is '{}', which no config.json is made of; {}", name, kLike));
    }
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", number("rope.scaling.factor")}};
  }

  std::string text_of(const std::filesystem::path& like) const {
    const ModelConfig config = read_model_config(like);
    const Json json = parse_json(config.text, config.source);
    const JsonCursor root(json, config.source);
    if (config.quantization) {
      root.at(kQuantizationKey)
          .fail("is there, so the folder of --like is not of the unquantized model; give that");
    }
    const GgufArchitecture& architecture = *config_.architecture;
    if (config.model_type != architecture.model_type && config.model_type != architecture.also) {
      root.fail(
          fmt::format("model_type is '{}' where {} holds a model of type {}; give the folder "
                      "of that model to --like",
                      config.model_type, file_.source(), architecture.model_type));
    }
    std::vector<std::pair<const char*, std::int64_t>> sizes{
        {"num_hidden_layers", config_.layers},       {"hidden_size", config_.hidden},
        {"intermediate_size", config_.intermediate}, {"num_attention_heads", config_.heads},
        {"num_key_value_heads", config_.kv_heads},   {"head_dim", config_.head_dim},
        {"vocab_size", config_.vocabulary}};
    if (config_.experts > 0) {
      sizes.emplace_back(architecture.experts_key, config_.experts);
      sizes.emplace_back("num_experts_per_tok", config_.experts_per_token);
    }
    if (architecture.own_intermediate) {
      sizes.emplace_back("moe_intermediate_size", config_.expert_intermediate);
    }
    for (const auto& [name, expected] : sizes) {
      if (!root.has(name) || root.at(name).value().is_null()) continue;
      if (const std::int64_t value = root.at(name).integer(1, 1e9); value != expected) {
        root.at(name).fail(
            fmt::format("is {} where {} has {}; give the folder of that model to "
                        "--like",
                        value, file_.source(), expected));
      }
    }
    const bool tied = root.has("tie_word_embeddings") && root.at("tie_word_embeddings").boolean();
    if (tied != config_.tied) {
      root.fail(
          fmt::format("tie_word_embeddings is {} where {} has {} 'output.weight'; give the "
                      "folder of that model to --like",
                      tied, file_.source(), config_.tied ? "no" : "an"));
    }
    return config.text;
  }

  const GgufFile& file_;
  JsonCursor root_;
  GgufConfig config_;
};

}  // namespace

GgufConfig read_gguf_config(const GgufFile& file, const std::filesystem::path& like, DType dtype) {
  return ConfigReader(file).read(like, dtype);
}

}  // namespace vqgen

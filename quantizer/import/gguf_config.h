// What the metadata of a GGUF file says of its model, and the config.json that it makes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "core/format/element.h"
#include "quantizer/import/gguf_file.h"

namespace vqgen {

// An architecture whose tensors and settings are known.
struct GgufArchitecture {
  const char* name;        // "general.architecture"
  const char* model_type;  // of config.json
  const char* also;        // another model_type with the same tensors, which --like may have
  const char* model_class;
  bool permuted;    // rows of q and k: pairs of RoPE side by side
  bool biases;      // of q, k and v
  bool head_norms;  // of q and k
  // A mixture of experts has a module in each layer, the names of an expert's gate, up and down in
  // it, and a key of config.json with the number of experts.
  const char* mixture = nullptr;
  std::array<const char*, 3> projections = {};
  const char* experts_key = nullptr;
  bool own_intermediate = false;  // an expert's intermediate size has a key of its own
};

struct GgufConfig {
  const GgufArchitecture* architecture = nullptr;
  std::int64_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t experts = 0, experts_per_token = 0, expert_intermediate = 0;  // 0 without experts
  std::int64_t vocabulary = 0;
  bool tied = false;  // lm_head is the embedding
  std::string text;   // config.json
};

// With a folder `like` of the unquantized model, which may be empty, its config.json is taken,
// whose sizes must be those of the file. Error(bad_input) for other architectures, and without
// `like` for settings that no config.json is made of.
GgufConfig read_gguf_config(const GgufFile& file, const std::filesystem::path& like, DType dtype);

}  // namespace vqgen

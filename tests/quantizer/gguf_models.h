// Tiny models of one layer as GGUF files: 64 channels, 4 query and 2 KV heads of 16, 96 between.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/format/element.h"
#include "tests/quantizer/gguf_builder.h"

namespace vqgen::gguf_models {

// f16 numbers that look random.
inline std::vector<std::uint16_t> halves(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint16_t> bits;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    bits.push_back(f16_from_float(static_cast<float>(seed >> 16) / 65536 - 0.5f));
  }
  return bits;
}

inline void add_halves(GgufBuilder& made, const std::string& name, std::vector<std::uint64_t> axes,
                       std::uint32_t seed) {
  const auto bits = halves(axes[0] * (axes.size() > 1 ? axes[1] : 1), seed);
  made.add(name, std::move(axes), 1,
           {reinterpret_cast<const char*>(bits.data()), bits.size() * sizeof bits[0]});
}

inline void add_floats(GgufBuilder& made, const std::string& name, std::size_t count) {
  const std::vector<float> values(count, 1.5f);
  made.add(name, {count}, 0, {reinterpret_cast<const char*>(values.data()), count * sizeof(float)});
}

// Sizes, and the tensors that all of the architectures have.
inline GgufBuilder common(const std::string& architecture) {
  GgufBuilder made;
  made.word("general.architecture", architecture);
  made.words("tokenizer.ggml.tokens", {"a", "b", ""});
  made.number("tokenizer.ggml.bos_token_id", 1);
  const std::pair<const char*, std::uint32_t> sizes[] = {
      {"block_count", 1},          {"context_length", 128},     {"embedding_length", 64},
      {"feed_forward_length", 96}, {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
  for (const auto& [name, size] : sizes) made.number(architecture + "." + name, size);
  made.real(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
  made.real(architecture + ".rope.freq_base", 500000);
  add_halves(made, "token_embd.weight", {64, 32}, 7);
  add_floats(made, "output_norm.weight", 64);
  add_floats(made, "blk.0.attn_norm.weight", 64);
  add_floats(made, "blk.0.ffn_norm.weight", 64);
  add_halves(made, "blk.0.attn_q.weight", {64, 64}, 1);
  add_halves(made, "blk.0.attn_k.weight", {64, 32}, 2);
  add_halves(made, "blk.0.attn_v.weight", {64, 32}, 3);
  add_halves(made, "blk.0.attn_output.weight", {64, 64}, 4);
  add_halves(made, "blk.0.ffn_gate.weight", {64, 96}, 5);
  add_halves(made, "blk.0.ffn_up.weight", {64, 96}, 6);
  std::string q8;  // {1/4, -16, -15, ..}
  for (std::size_t block = 0; block < 64 * 96 / 32; ++block) {
    append_integer(q8, f16_from_float(0.25f));
    for (int i = -16; i < 16; ++i) q8 += static_cast<char>(i);
  }
  made.add("blk.0.ffn_down.weight", {96, 64}, 8, q8);
  return made;
}

inline GgufBuilder llama() {
  GgufBuilder made = common("llama");
  made.word("llama.rope.scaling.type", "linear");
  made.real("llama.rope.scaling.factor", 2);
  add_halves(made, "output.weight", {64, 32}, 8);
  return made;
}

inline GgufBuilder qwen(const std::string& architecture) {
  GgufBuilder made = common(architecture);
  if (architecture == "qwen2") {
    add_floats(made, "blk.0.attn_q.bias", 64);
    add_floats(made, "blk.0.attn_k.bias", 32);
    add_floats(made, "blk.0.attn_v.bias", 32);
  } else {
    add_floats(made, "blk.0.attn_q_norm.weight", 16);
    add_floats(made, "blk.0.attn_k_norm.weight", 16);
  }
  return made;
}

}  // namespace vqgen::gguf_models

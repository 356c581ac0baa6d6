// Tiny models as GGUF files: of one layer with 64 channels, 4 query and 2 KV heads of 16 and 96
// between; of two layers whose rows are whole blocks of 256 weights; and a mixture of experts.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "core/format/element.h"
#include "quantizer/import/dequantize.h"
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

// Of IQ1_M, whose blocks alone have their scale in parts. Bit 6 of the last byte is the first of
// its exponent.
inline constexpr std::size_t kIq1MBytes = 56;
// Blocks of Q2_K end with two f16.
inline constexpr std::size_t kQ2KBytes = 84;

// Random blocks of a type whose first or last 2 bytes are a scale, here of 1/4 or less, and all of
// whose other bits may be any.
inline std::string random_blocks(std::size_t block_bytes, std::size_t count, std::uint32_t seed) {
  std::string bytes;
  const std::vector<std::uint16_t> scales = halves(count, seed);
  for (std::size_t i = 0; i < block_bytes * count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    bytes += static_cast<char>(seed >> 24);
  }
  for (std::size_t block = 0; block < count; ++block) {
    const std::uint16_t scale = f16_from_float(f16_to_float(scales[block]) / 2);
    std::memcpy(bytes.data() + block * block_bytes, &scale, sizeof scale);
    if (block_bytes == kIq1MBytes) bytes[(block + 1) * block_bytes - 1] &= 0x3f;
    if (block_bytes == kQ2KBytes) {
      for (const std::size_t at : {4u, 2u}) {
        std::memcpy(bytes.data() + (block + 1) * block_bytes - at, &scale, sizeof scale);
      }
    }
  }
  return bytes;
}

// 256 channels, 4 query and 2 KV heads of 64, 512 between. Linear layers are of the given types,
// by turns: F16, Q2_K or an i-quant.
inline GgufBuilder wide_llama(const std::vector<std::uint32_t>& types) {
  GgufBuilder made;
  made.word("general.architecture", "llama");
  const std::pair<const char*, std::uint32_t> sizes[] = {
      {"block_count", 2},           {"context_length", 128},     {"embedding_length", 256},
      {"feed_forward_length", 512}, {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
  for (const auto& [name, size] : sizes) made.number(std::string("llama.") + name, size);
  made.real("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  add_halves(made, "token_embd.weight", {256, 64}, 7);
  add_halves(made, "output.weight", {256, 64}, 8);
  add_floats(made, "output_norm.weight", 256);
  std::uint32_t number = 0;
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    add_floats(made, layer + "attn_norm.weight", 256);
    add_floats(made, layer + "ffn_norm.weight", 256);
    const std::tuple<const char*, std::uint64_t, std::uint64_t> linear[] = {
        {"attn_q", 256, 256},      {"attn_k", 256, 128},   {"attn_v", 256, 128},
        {"attn_output", 256, 256}, {"ffn_gate", 256, 512}, {"ffn_up", 256, 512},
        {"ffn_down", 512, 256}};
    for (const auto& [name, inputs, outputs] : linear) {
      const std::uint32_t id = types[number++ % types.size()];
      const std::string full = layer + name + ".weight";
      const GgufType& type = *find_gguf_type(id);
      if (type.block == 1) {
        add_halves(made, full, {inputs, outputs}, number);
      } else {
        made.add(
            full, {inputs, outputs}, id,
            random_blocks(static_cast<std::size_t>(type.bytes), inputs * outputs / 256, number));
      }
    }
  }
  return made;
}

// A mixture of 3 experts, 2 per token, of 256 channels and 512 between, of one layer: as "llama"
// (Mixtral) or as "qwen3moe". The types are those of gate, up and down.
inline GgufBuilder wide_mixture(const std::string& architecture,
                                const std::array<std::uint32_t, 3>& types) {
  GgufBuilder made;
  made.word("general.architecture", architecture);
  const bool qwen = architecture == "qwen3moe";
  const std::pair<const char*, std::uint32_t> sizes[] = {
      {"block_count", 1},          {"context_length", 128},
      {"embedding_length", 256},   {"feed_forward_length", qwen ? 1024 : 512},
      {"attention.head_count", 4}, {"attention.head_count_kv", 2},
      {"expert_count", 3},         {"expert_used_count", 2}};
  for (const auto& [name, size] : sizes) made.number(architecture + "." + name, size);
  if (qwen) made.number("qwen3moe.expert_feed_forward_length", 512);
  made.real(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
  add_halves(made, "token_embd.weight", {256, 64}, 7);
  add_halves(made, "output.weight", {256, 64}, 8);
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
    add_floats(made, norm + std::string(".weight"), 256);
  }
  if (qwen) {
    add_floats(made, "blk.0.attn_q_norm.weight", 64);
    add_floats(made, "blk.0.attn_k_norm.weight", 64);
  }
  add_halves(made, "blk.0.attn_q.weight", {256, 256}, 1);
  add_halves(made, "blk.0.attn_k.weight", {256, 128}, 2);
  add_halves(made, "blk.0.attn_v.weight", {256, 128}, 3);
  add_halves(made, "blk.0.attn_output.weight", {256, 256}, 4);
  add_halves(made, "blk.0.ffn_gate_inp.weight", {256, 3}, 5);
  const std::tuple<const char*, std::uint64_t, std::uint64_t> experts[] = {
      {"ffn_gate_exps", 256, 512}, {"ffn_up_exps", 256, 512}, {"ffn_down_exps", 512, 256}};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto& [name, inputs, outputs] = experts[i];
    const GgufType& type = *find_gguf_type(types[i]);
    made.add(std::string("blk.0.") + name + ".weight", {inputs, outputs, 3}, types[i],
             random_blocks(static_cast<std::size_t>(type.bytes), 3 * inputs * outputs / 256, i));
  }
  return made;
}

}  // namespace vqgen::gguf_models

// The types of tensors in GGUF files, and their blocks to floats: equal to the last bit to what
// gguf (gguf.quants.dequantize) and ggml decode.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vqgen {

struct IqFormat;

inline constexpr std::uint32_t kQ2KType = 10;  // GgufType::id of Q2_K

struct GgufType {
  std::uint32_t id;
  const char* name;  // "IQ2_XXS"
  int block;         // weights
  int bytes;         // of a block
  // Decodes blocks, one behind another; null where vqgen does not, and `block` and `bytes` are 0.
  void (*decode)(const std::byte* blocks, std::size_t count, float* weights);
  const IqFormat* iq = nullptr;  // of types with codebooks (iq_blocks.h)
};

// Number `i`, of 2 bits, of a block of Q2_K.
unsigned q2_k_number(const std::byte* block, int i);

// Null for an id that no type has.
const GgufType* find_gguf_type(std::uint32_t id);

}  // namespace vqgen

// The types of tensors in GGUF files, and their blocks to floats: equal to the last bit to what
// gguf (gguf.quants.dequantize) and ggml decode.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vqgen {

struct IqFormat;

struct GgufType {
  std::uint32_t id;
  const char* name;  // "IQ2_XXS"
  int block;         // weights
  int bytes;         // of a block
  // Decodes blocks, one behind another; null where vqgen does not, and `block` and `bytes` are 0.
  void (*decode)(const std::byte* blocks, std::size_t count, float* weights);
  const IqFormat* iq = nullptr;  // of types with codebooks (iq_blocks.h)
};

// Null for an id that no type has.
const GgufType* find_gguf_type(std::uint32_t id);

}  // namespace vqgen

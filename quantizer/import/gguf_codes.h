// Linear layers of GGUF whose blocks hold what a format of vqgen holds: an entry's number and signs
// per vector, a small scale per group, and an f16 per block. They keep all of these.
#pragma once

#include <optional>
#include <string>

#include "core/format/quantized_tensor.h"
#include "quantizer/import/gguf_rows.h"
#include "quantizer/import/iq_blocks.h"

namespace vqgen {

// The format of the type's codes; nothing for types without codebooks.
std::optional<VqFormat> gguf_codes_format(const GgufType& type);

// Why no kernel reads weights of this format and size; empty if one does.
std::string no_kernel_reads(const VqFormat& format, DType dtype, std::int64_t out_features,
                            std::int64_t in_features);

class GgufCodes {
 public:
  // Requires the rows of one matrix whose type has a format, and a kernel that reads it.
  GgufCodes(GgufRows rows, DType dtype);

  // Weights as they will be, without data.
  const QuantizedTensor& sizes() const { return sizes_; }
  // The bytes of one of weight_tensors(sizes()). Error(bad_input) for weights that are not finite.
  void write(std::string_view suffix, const TakeBytes& take) const;

 private:
  void convert(std::span<const std::byte> blocks, std::span<std::byte> into) const;
  void require_finite(const IqBlock& block) const;

  GgufRows rows_;
  const IqFormat& iq_;
  float unit_ = 0;  // of an entry
  float peak_ = 0;  // the largest entry
  QuantizedTensor sizes_;
};

}  // namespace vqgen

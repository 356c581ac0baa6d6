// Linear layers of GGUF whose blocks hold what a format of vqgen holds: an entry's number and signs
// per vector, a small scale per group, and an f16 per block. They keep all of these. Four numbers
// of Q2_K are a code; it has a minimum beside each scale.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "quantizer/import/gguf_rows.h"
#include "quantizer/import/iq_blocks.h"

namespace vqgen {

// The format of the type's codes; nothing for types that become dense.
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
  // A row's codes, the numbers of its groups, and the f16 of its blocks.
  struct Row {
    std::vector<std::uint32_t> codes, numbers;
    std::vector<std::uint16_t> halves;
  };
  void convert(std::span<const std::byte> blocks, std::span<std::byte> into) const;
  void add_iq(Row& row, const std::byte* at) const;
  void add_q2_k(Row& row, const std::byte* at) const;
  void require_finite(float weight) const;

  GgufRows rows_;
  const IqFormat* iq_;  // null: Q2_K
  float unit_ = 0;      // of an entry
  float peak_ = 0;      // the largest entry
  QuantizedTensor sizes_;
};

}  // namespace vqgen

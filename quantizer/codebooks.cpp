#include "quantizer/codebooks.h"

#include <cmath>

#include "core/error.h"

namespace vqgen {

void require_supported(const VqFormat& format, const std::string& where) {
  if (format.entry_type == EntryType::int8 && !format.stage_scales) {
    throw Error(ErrorKind::infeasible,
                where + ": int8 entries need stage_scales; set them to true");
  }
  if (format.decoder == Decoder::e8p &&
      (format.vector_size != kE8pVectorSize || format.index_bits != 16)) {
    throw Error(ErrorKind::infeasible,
                where +
                    ": e8p makes 8 elements of 16 bits; set vector_size to 8 and index_bits to "
                    "16");
  }
}

void fold_projections(Codebooks& codebooks) {
  if (codebooks.projections.empty()) return;
  if (codebooks.format.entry_type == EntryType::int8) {
    throw Error(ErrorKind::bad_input,
                "codebooks: projected entries are no integers; use entry_type element");
  }
  const auto size = static_cast<std::size_t>(codebooks.format.vector_size);
  const auto entries = static_cast<std::size_t>(codebooks.format.entries());
  const auto stages = static_cast<std::size_t>(codebooks.format.residuals);
  std::vector<double> entry(size);
  for (std::size_t index = 0; index < codebooks.entries.size() / size; ++index) {
    const float* matrix = codebooks.projections.data() + index / entries % stages * size * size;
    std::uint16_t* bits = codebooks.entries.data() + index * size;
    for (std::size_t i = 0; i < size; ++i) entry[i] = element_to_float(codebooks.dtype, bits[i]);
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < size; ++j) sum += double{matrix[i * size + j]} * entry[j];
      bits[i] = element_from_float(codebooks.dtype, static_cast<float>(sum));
      if (!std::isfinite(element_to_float(codebooks.dtype, bits[i]))) {
        throw Error(ErrorKind::bad_input,
                    "codebooks: a projected entry is too large for " +
                        std::string(enum_name(codebooks.dtype)) +
                        "; scale the projection down and put the factor into the stage scales");
      }
    }
  }
  codebooks.projections.clear();
}

}  // namespace vqgen

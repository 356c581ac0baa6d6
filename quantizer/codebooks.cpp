#include "quantizer/codebooks.h"

#include <cmath>

#include "core/error.h"

namespace vqgen {

void require_table(const VqFormat& format, const std::string& where) {
  if (format.decoder != Decoder::table || format.entry_type != EntryType::element) {
    throw Error(ErrorKind::infeasible,
                where +
                    ": the quantizer knows tables of 16-bit elements only; set decoder to table "
                    "and entry_type to element");
  }
}

void fold_projections(Codebooks& codebooks) {
  if (codebooks.projections.empty()) return;
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

#include "core/format/stored.h"

#include <fmt/format.h>

namespace vqgen {

double stored_bits(const VqFormat& format, std::int64_t columns) {
  std::int64_t numbers = 0;
  for_each_part(format, static_cast<int>(columns),
                [&](const VqFormat&, int channels) { numbers += channels; });
  return 32.0 * static_cast<double>(format.row_words(columns)) / static_cast<double>(numbers);
}

std::string codes_text(const VqFormat& format) {
  if (format.is_scalar()) {
    return fmt::format("numbers of {} bits by decoder {}", format.index_bits / format.vector_size,
                       enum_name(format.decoder));
  }
  std::string codes;
  for_each_part(format, 0, [&](const VqFormat& part, int) {
    if (!codes.empty()) codes += ", in the next part ";
    codes += fmt::format("a code of {} bits names one of {} entries of {} numbers, {} summed",
                         part.index_bits, part.entries(), part.vector_size, part.num_codebooks);
  });
  return codes;
}

}  // namespace vqgen

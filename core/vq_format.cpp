#include "core/vq_format.h"

#include <fmt/format.h>

namespace vqgen {

std::string short_name(const VqFormat& format) {
  std::string name = format.decoder == Decoder::e8p
                         ? "e8p"
                         : fmt::format("d{}b{}", format.vector_size, format.index_bits);
  if (format.residuals > 1) name += fmt::format("x{}", format.residuals);
  return name;
}

VqFormat for_values(VqFormat format) {
  format.smooth = false;
  format.hadamard = false;
  return format;
}

}  // namespace vqgen

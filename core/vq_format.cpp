#include "core/vq_format.h"

namespace vqgen {

std::string short_name(const VqFormat& format) {
  std::string name =
      "d" + std::to_string(format.vector_size) + "b" + std::to_string(format.index_bits);
  if (format.residuals > 1) name += "x" + std::to_string(format.residuals);
  return name;
}

VqFormat for_values(VqFormat format) {
  format.smooth = false;
  format.hadamard = false;
  return format;
}

}  // namespace vqgen

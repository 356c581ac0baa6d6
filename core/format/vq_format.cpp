#include "core/format/vq_format.h"

#include <fmt/format.h>

namespace vqgen {

std::string short_name(const VqFormat& format) {
  std::string name = format.decoder == Decoder::e8p
                         ? "e8p"
                         : fmt::format("d{}b{}", format.vector_size, format.index_bits);
  if (format.entry_type == EntryType::int8) name += "i8";
  if (format.residuals > 1) name += fmt::format("x{}", format.residuals);
  if (!format.layout.plain()) {
    name += fmt::format("_l{}x{}", format.layout.rows, format.layout.words);
  }
  return name;
}

VqFormat without_layout(VqFormat format) {
  format.layout = {};
  return format;
}

VqFormat for_values(VqFormat format) {
  format.smooth = false;
  format.hadamard = false;
  return format;
}

}  // namespace vqgen

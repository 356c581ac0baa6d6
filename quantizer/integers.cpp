#include "quantizer/integers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "quantizer/encode.h"

namespace vqgen {
namespace {

void require_elements(const VqFormat& format, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::infeasible, where + ": " + why);
  };
  if (!format.parts.empty()) refuse("keys in parts have entries of elements");
  if (format.decoder != Decoder::table) {
    refuse(fmt::format("entries of decoder {} are no integers", enum_name(format.decoder)));
  }
  if (format.entry_type == EntryType::int8) refuse("the entries are integers already");
  if (format.vector_size != 4 && format.vector_size != 8) {
    refuse(fmt::format("int8 entries have vector_size 4 or 8, not {}", format.vector_size));
  }
}

}  // namespace

double round_to_integers(QuantizedTensor& tensor, bool weights, const std::string& where) {
  require_elements(tensor.format, where);
  const FloatTensor before = decode(tensor);
  const auto stages = static_cast<std::size_t>(tensor.format.num_codebooks);
  const std::size_t books = static_cast<std::size_t>(tensor.units) * stages;
  const std::size_t size = tensor.codebooks.size() / books;
  std::vector<float> entries(tensor.codebooks.size());
  std::vector<float> peaks(books, 0.0f);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const float scale = tensor.stage_scales.empty() ? 1.0f : tensor.stage_scales[i / size];
    entries[i] = scale * element_to_float(tensor.dtype, tensor.codebooks[i]);
    peaks[i / size] = std::max(peaks[i / size], std::abs(entries[i]));
  }
  VqFormat& format = tensor.format;
  format.entry_type = EntryType::int8;
  format.stage_scales = true;
  format.common_scale = weights && stages > 1;
  const auto most = static_cast<float>(format.entry_peak());
  tensor.stage_scales.assign(books, 0.0f);
  for (std::size_t book = 0; book < books; ++book) {
    const auto first = peaks.begin() + static_cast<std::ptrdiff_t>(book / stages * stages);
    const float peak = format.common_scale
                           ? *std::max_element(first, first + static_cast<std::ptrdiff_t>(stages))
                           : peaks[book];
    const float scale = peak > 0 ? peak / most : 1.0f;
    tensor.stage_scales[book] = scale;
    for (std::size_t i = book * size; i < (book + 1) * size; ++i) {
      const float whole = std::clamp(std::round(entries[i] / scale), -most, most);
      tensor.codebooks[i] = element_from_float(tensor.dtype, whole);
    }
  }
  return reconstruction_error(before, decode(tensor)).relative;
}

}  // namespace vqgen

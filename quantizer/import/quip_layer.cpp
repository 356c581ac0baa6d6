#include "quantizer/import/quip_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/format/e8p.h"
#include "quantizer/import/quip_codes.h"

namespace vqgen {
namespace {

void write_codes(const QuipLayer& layer, const TakeBytes& take) {
  const auto stages = static_cast<std::size_t>(layer.stages), tile = std::size_t{kQuipTileRows};
  const auto row_words = static_cast<std::size_t>(layer.columns / kQuipWordInputs);  // of a stage
  const std::int64_t vectors = layer.columns / kE8pVectorSize;
  std::vector<std::uint64_t> rows(tile * row_words * stages), words(tile * row_words);
  std::vector<std::uint16_t> codes(tile * static_cast<std::size_t>(vectors) * stages);
  std::uint64_t from = 0, into = 0;
  for (std::int64_t first = 0; first < layer.rows; first += kQuipTileRows) {
    layer.file->read_bytes(*layer.codes, from, std::as_writable_bytes(std::span(rows)));
    for (std::size_t stage = 0; stage < stages; ++stage) {
      for (std::size_t row = 0; row < tile; ++row) {
        std::copy_n(&rows[(row * stages + stage) * row_words], row_words, &words[row * row_words]);
      }
      quip_tile(words, vectors, stages, stage, codes);
    }
    take(into, std::as_bytes(std::span(codes)));
    from += rows.size() * sizeof rows[0];
    into += codes.size() * sizeof codes[0];
  }
}

void write_tables(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<std::uint16_t> bits;
  for (int stage = 0; stage < layer.stages; ++stage) {
    for (const float entry : quip_table()) bits.push_back(element_from_float(layer.dtype, entry));
  }
  take(0, std::as_bytes(std::span(bits)));
}

void write_stage_scales(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<float> scales = layer.file->read_finite(layer.scale->name);
  if (layer.stages > 1) scales.push_back(scales[0] / layer.residual_scale);
  take(0, std::as_bytes(std::span(scales)));
}

// Numbers that are not zero, so that a division by them is one.
std::vector<float> read_divisors(const SafetensorsFile& file, const TensorInfo& info) {
  std::vector<float> values = file.read_finite(info.name);
  const auto zero = std::ranges::find(values, 0.0f);
  if (zero != values.end()) {
    file.fail(info.name, fmt::format("element {} is 0, by which inputs are divided; fetch the "
                                     "model again",
                                     zero - values.begin()));
  }
  return values;
}

void write_input_signs(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<float> signs = layer.file->read_finite(layer.input_signs->name);
  if (layer.input_scales != nullptr) {
    const std::vector<float> scales = read_divisors(*layer.file, *layer.input_scales);
    for (std::size_t i = 0; i < signs.size(); ++i) signs[i] /= scales[i];
    const auto beyond = std::ranges::find_if(signs, [](float s) { return !std::isfinite(s); });
    if (beyond != signs.end()) {
      layer.file->fail(layer.input_scales->name,
                       fmt::format("element {} is so small that SU over it is not finite; fetch "
                                   "the model again",
                                   beyond - signs.begin()));
    }
  }
  take(0, std::as_bytes(std::span(signs)));
}

void write_output_signs(const QuipLayer& layer, const TakeBytes& take) {
  std::vector<float> signs = layer.file->read_finite(layer.output_signs->name);
  if (layer.part_scales != nullptr) {
    const std::vector<float> scales = layer.file->read_finite(layer.part_scales->name);
    std::size_t row = 0;
    for (std::size_t part = 0; part < scales.size(); ++part) {
      const std::size_t end = row + static_cast<std::size_t>(layer.part_rows[part]);
      for (; row < end; ++row) signs[row] *= scales[part];
    }
    const auto beyond = std::ranges::find_if(signs, [](float s) { return !std::isfinite(s); });
    if (beyond != signs.end()) {
      layer.file->fail(layer.part_scales->name,
                       fmt::format("times element {} of SV is not finite; fetch the model again",
                                   beyond - signs.begin()));
    }
  }
  take(0, std::as_bytes(std::span(signs)));
}

}  // namespace

std::function<void(const TakeBytes&)> quip_writer(std::string_view suffix, const QuipLayer& layer) {
  if (suffix == ".codes") return [layer](const TakeBytes& take) { write_codes(layer, take); };
  if (suffix == ".codebooks") return [layer](const TakeBytes& take) { write_tables(layer, take); };
  if (suffix == ".input_signs") {
    return [layer](const TakeBytes& take) { write_input_signs(layer, take); };
  }
  if (suffix == ".output_signs") {
    return [layer](const TakeBytes& take) { write_output_signs(layer, take); };
  }
  return [layer](const TakeBytes& take) { write_stage_scales(layer, take); };
}

}  // namespace vqgen

#include "quantizer/encode.h"

#include <vq/layout/codes.h>

#include <fmt/format.h>

#include <variant>

#include "core/error.h"
#include "core/format/entries.h"
#include "quantizer/decode.h"
#include "quantizer/nearest.h"
#include "quantizer/nearest_point.h"
#include "quantizer/pack.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// Encodes the sub-vectors of one unit, a chunk at a time so that residuals stay in cache.
class UnitEncoder {
 public:
  UnitEncoder(const QuantizedTensor& tensor, std::int64_t unit)
      : size_(static_cast<std::size_t>(tensor.format.vector_size)), decoder_(tensor, unit) {
    for (int stage = 0; stage < tensor.format.residuals; ++stage) {
      if (tensor.format.decoder == Decoder::e8p) {
        searches_.emplace_back(NearestPoint(decoder_.entries(stage), decoder_.scale(stage)));
      } else {
        searches_.emplace_back(NearestEntry(decoder_.entries(stage), tensor.format.vector_size));
      }
    }
  }

  // Takes one sub-vector, whose codes of all stages shall stand at `codes`.
  void add(std::span<const float> vector, std::uint32_t* codes) {
    residuals_.insert(residuals_.end(), vector.begin(), vector.end());
    targets_.push_back(codes);
    if (targets_.size() == kChunk) flush();
  }

  void flush() {
    codes_.resize(targets_.size());
    for (std::size_t stage = 0; stage < searches_.size(); ++stage) {
      std::visit([this](const auto& search) { search.find(residuals_, codes_); }, searches_[stage]);
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        targets_[i][stage] = codes_[i];
        const auto numbers = decoder_.numbers(static_cast<int>(stage), codes_[i]);
        for (std::size_t d = 0; d < size_; ++d) residuals_[i * size_ + d] -= numbers[d];
      }
    }
    residuals_.clear();
    targets_.clear();
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  std::size_t size_;
  UnitDecoder decoder_;
  std::vector<std::variant<NearestEntry, NearestPoint>> searches_;  // [stage]
  std::vector<float> residuals_;
  std::vector<std::uint32_t*> targets_;
  std::vector<std::uint32_t> codes_;
};

void require_codebooks(const Codebooks& codebooks, const UnitMap& map) {
  const VqFormat& format = codebooks.format;
  const auto stages = static_cast<std::size_t>(map.units() * format.residuals);
  const auto stage_size = static_cast<std::size_t>(format.entries() * format.vector_size);
  if (codebooks.units != map.units() || codebooks.entries.size() != stages * stage_size ||
      (format.stage_scales && codebooks.stage_scales.size() != stages) ||
      !codebooks.projections.empty()) {
    throw Error(
        ErrorKind::bad_input,
        "encode: the codebooks do not fit tensor and format; train them on a tensor of this "
        "shape, and fold projections first");
  }
  for (const std::uint16_t bits : codebooks.entries) {
    const float value = element_to_float(codebooks.dtype, bits);
    if (!fits_entries(format, value)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("encode: {} stands among the entries, which must be {}", value,
                              entry_numbers(format)));
    }
  }
}

}  // namespace

QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks) {
  const VqFormat& format = codebooks.format;
  require_supported(format, "encode");
  const UnitMap map = unit_map(format, values.heads, values.rows, values.columns, "encode");
  require_codebooks(codebooks, map);

  QuantizedTensor result;
  result.format = format;
  result.dtype = codebooks.dtype;
  result.batch = values.batch;
  result.heads = values.heads;
  result.rows = values.rows;
  result.columns = values.columns;
  result.units = map.units();
  result.row_words =
      vq::row_words(values.columns, format.vector_size, format.residuals, format.index_bits);
  result.codebooks = codebooks.entries;
  result.stage_scales = codebooks.stage_scales;

  const std::int64_t row_codes = values.columns / format.vector_size * format.residuals;
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(values.row_count() * row_codes));
  const auto size = static_cast<std::size_t>(format.vector_size);
  for (std::int64_t unit = 0; unit < result.units; ++unit) {
    UnitEncoder encoder(result, unit);
    for_each_sub_vector(map, map.extent(unit), values.batch, format.vector_size,
                        [&](std::int64_t row, std::int64_t column) {
                          const std::int64_t code =
                              row * row_codes + column / format.vector_size * format.residuals;
                          encoder.add(
                              values.row(row).subspan(static_cast<std::size_t>(column), size),
                              codes.data() + code);
                        });
    encoder.flush();
  }

  pack_codes(codes, result);
  return result;
}

}  // namespace vqgen

#include "quantizer/encode.h"

#include <vq/layout/codes.h>

#include "core/error.h"
#include "quantizer/decode.h"
#include "quantizer/nearest.h"
#include "quantizer/pack.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// Encodes the sub-vectors of one unit, a chunk at a time so that residuals stay in cache.
class UnitEncoder {
 public:
  UnitEncoder(const QuantizedTensor& tensor, std::int64_t unit)
      : size_(static_cast<std::size_t>(tensor.format.vector_size)),
        numbers_(scaled_entries(tensor, unit)) {
    const auto stages = static_cast<std::size_t>(tensor.format.residuals);
    stage_size_ = numbers_.size() / stages;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      tables_.emplace_back(std::span(numbers_).subspan(stage * stage_size_, stage_size_),
                           tensor.format.vector_size);
    }
  }

  // Takes one sub-vector, whose codes of all stages shall stand at `codes`.
  void add(std::span<const float> vector, std::uint32_t* codes) {
    residuals_.insert(residuals_.end(), vector.begin(), vector.end());
    targets_.push_back(codes);
    if (targets_.size() == kChunk) flush();
  }

  void flush() {
    indices_.resize(targets_.size());
    for (std::size_t stage = 0; stage < tables_.size(); ++stage) {
      tables_[stage].find(residuals_, indices_);
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        targets_[i][stage] = indices_[i];
        const float* entry = numbers_.data() + stage * stage_size_ + indices_[i] * size_;
        for (std::size_t d = 0; d < size_; ++d) residuals_[i * size_ + d] -= entry[d];
      }
    }
    residuals_.clear();
    targets_.clear();
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  std::size_t size_;
  std::size_t stage_size_ = 0;
  std::vector<float> numbers_;  // [stage][entry][vector_size]
  std::vector<NearestEntry> tables_;
  std::vector<float> residuals_;
  std::vector<std::uint32_t*> targets_;
  std::vector<std::uint32_t> indices_;
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
}

}  // namespace

QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks) {
  const VqFormat& format = codebooks.format;
  require_table(format, "encode");
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

  result.codes.resize(static_cast<std::size_t>(values.row_count() * result.row_words));
  for (std::int64_t row = 0; row < values.row_count(); ++row) {
    pack_row(std::span(codes).subspan(static_cast<std::size_t>(row * row_codes),
                                      static_cast<std::size_t>(row_codes)),
             format.index_bits,
             std::span(result.codes)
                 .subspan(static_cast<std::size_t>(row * result.row_words),
                          static_cast<std::size_t>(result.row_words)));
  }
  return result;
}

}  // namespace vqgen

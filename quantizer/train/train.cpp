#include "quantizer/train/train.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "core/format/vq_format.h"
#include "quantizer/nearest.h"
#include "quantizer/train/clustering.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// Below this many vectors an entry k-means follows the sample, not the distribution (FAISS's rule).
constexpr std::int64_t kPoorVectorsPerEntry = 39;

// A well mixed number for each (seed, unit, stage): the finaliser of splitmix64.
std::uint64_t mixed_seed(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + (stream + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Trainer {
 public:
  explicit Trainer(const TrainRequest& request)
      : request_(request),
        format_(request.format),
        tensor_(*request.calibration),
        map_(unit_map(format_, tensor_.heads, tensor_.rows, tensor_.columns, request.name)),
        size_(static_cast<std::size_t>(format_.vector_size)) {}

  Codebooks train() {
    if (format_.decoder == Decoder::table) check_counts();
    Codebooks result{format_, request_.dtype, map_.units(), {}, {}, {}};
    for (std::int64_t unit = 0; unit < map_.units(); ++unit) {
      std::vector<float> residuals = sample(unit);
      for (int stage = 0; stage < format_.residuals; ++stage) {
        report(unit, stage);
        if (format_.decoder == Decoder::e8p) {
          fit_lattice(stage, residuals, result);
        } else {
          train_stage(unit, stage, residuals, result);
        }
      }
    }
    if (request_.options.progress) request_.options.progress(1.0, request_.name);
    return result;
  }

 private:
  std::int64_t sub_vectors(std::int64_t unit) const {
    return map_.extent(unit).elements() * tensor_.batch / format_.vector_size;
  }

  void check_counts() const {
    std::int64_t fewest = sub_vectors(0);
    for (std::int64_t unit = 1; unit < map_.units(); ++unit) {
      fewest = std::min(fewest, sub_vectors(unit));
    }
    const int entries = format_.entries();
    if (fewest < entries) {
      throw Error(
          ErrorKind::bad_input,
          fmt::format("{}: {} sub-vectors cannot train {} entries; calibrate on more tokens, "
                      "lower index_bits, or widen the scope",
                      request_.name, fewest, entries));
    }
    if (fewest < kPoorVectorsPerEntry * entries && request_.options.warn) {
      request_.options.warn(
          fmt::format("{}: {} sub-vectors for {} entries are few (under {} an "
                      "entry): the codebook will not carry over to other data; "
                      "calibrate on more tokens, or lower index_bits",
                      request_.name, fewest, entries, kPoorVectorsPerEntry));
    }
  }

  void report(std::int64_t unit, int stage) const {
    if (!request_.options.progress) return;
    const double done = static_cast<double>(unit * format_.residuals + stage);
    request_.options.progress(done / static_cast<double>(map_.units() * format_.residuals),
                              fmt::format("{}: codebook {} of {}, stage {} of {}", request_.name,
                                          unit + 1, map_.units(), stage + 1, format_.residuals));
  }

  // A lattice has one number to be fitted where a table has thousands.
  std::int64_t most_vectors() const {
    constexpr std::int64_t kForLattice = 8192;
    if (format_.decoder == Decoder::e8p) return kForLattice;
    return std::int64_t{request_.options.max_points_per_entry} * format_.entries();
  }

  // The unit's sub-vectors in order, or an even choice of them where they are too many (Knuth's
  // algorithm S).
  std::vector<float> sample(std::int64_t unit) const {
    std::int64_t left = sub_vectors(unit);
    std::int64_t wanted = std::min(left, most_vectors());
    std::mt19937_64 random(mixed_seed(request_.options.seed, static_cast<std::uint64_t>(unit)));
    std::vector<float> vectors;
    vectors.reserve(static_cast<std::size_t>(wanted) * size_);
    for_each_sub_vector(map_, map_.extent(unit), tensor_.batch, format_.vector_size,
                        [&](std::int64_t row, std::int64_t column) {
                          if (wanted == left || random() % static_cast<std::uint64_t>(left) <
                                                    static_cast<std::uint64_t>(wanted)) {
                            const auto vector =
                                tensor_.row(row).subspan(static_cast<std::size_t>(column), size_);
                            vectors.insert(vectors.end(), vector.begin(), vector.end());
                            --wanted;
                          }
                          --left;
                        });
    return vectors;
  }

  // Appends one stage's entries (and scale) to `result`, and leaves in `residuals` what they miss.
  void train_stage(std::int64_t unit, int stage, std::vector<float>& residuals,
                   Codebooks& result) const {
    float scale = 1.0f;
    if (format_.stage_scales) {
      scale = root_mean_square(residuals);
      for (float& value : residuals) value /= scale;
    }
    const std::uint64_t stream = static_cast<std::uint64_t>(unit * format_.residuals + stage);
    std::vector<float> entries =
        cluster(residuals, format_.vector_size, format_.entries(), request_.options.iterations,
                mixed_seed(~request_.options.seed, stream));
    if (format_.entry_type == EntryType::int8) {
      const float step = peak(entries) / kInt8Peak;
      for (float& value : residuals) value /= step;
      for (float& value : entries) value = std::round(value / step);
      scale *= step;
    }
    if (format_.stage_scales) result.stage_scales.push_back(scale);
    for (float& value : entries) {
      const std::uint16_t bits = element_from_float(request_.dtype, value);
      if (!std::isfinite(element_to_float(request_.dtype, bits))) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: an entry of {} is beyond {}; use bf16, or stage_scales",
                                request_.name, value, enum_name(request_.dtype)));
      }
      result.entries.push_back(bits);
      value = element_to_float(request_.dtype, bits);
    }
    if (stage + 1 == format_.residuals) return;

    std::vector<std::uint32_t> nearest(residuals.size() / size_);
    NearestEntry(entries, format_.vector_size).find(residuals, nearest);
    for (std::size_t i = 0; i < residuals.size(); ++i) {
      residuals[i] = scale * (residuals[i] - entries[nearest[i / size_] * size_ + i % size_]);
    }
  }

  // The same for a lattice, whose entries are given.
  void fit_lattice(int stage, std::vector<float>& residuals, Codebooks& result) const {
    const std::vector<float> table = e8p_table();
    for (const float value : table) {
      result.entries.push_back(element_from_float(request_.dtype, value));
    }
    const float scale = format_.stage_scales ? lattice_scale(table, residuals) : 1.0f;
    if (format_.stage_scales) result.stage_scales.push_back(scale);
    if (stage + 1 == format_.residuals) return;

    std::vector<std::uint32_t> nearest(residuals.size() / size_);
    NearestPoint(table, scale).find(residuals, nearest);
    std::vector<float> point(size_);
    for (std::size_t i = 0; i < nearest.size(); ++i) {
      const std::size_t entry = format_.entry_of(nearest[i]);
      lattice_point(std::span(table).subspan(entry * size_, size_), nearest[i], point);
      for (std::size_t d = 0; d < size_; ++d) residuals[i * size_ + d] -= scale * point[d];
    }
  }

  static float peak(const std::vector<float>& values) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    return most > 0 ? most : 1.0f;
  }

  const TrainRequest& request_;
  const VqFormat& format_;
  const FloatTensor& tensor_;
  UnitMap map_;
  std::size_t size_;
};

}  // namespace

float root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  const auto root = static_cast<float>(std::sqrt(sum / static_cast<double>(values.size())));
  return root > 0 ? root : 1.0f;
}

Codebooks train_codebooks(const TrainRequest& request) {
  require_supported(request.format, request.name);
  if (request.calibration == nullptr || request.calibration->data.empty()) {
    throw Error(ErrorKind::bad_input,
                request.name + ": the calibration is empty; give tokens to train on");
  }
  return Trainer(request).train();
}

}  // namespace vqgen

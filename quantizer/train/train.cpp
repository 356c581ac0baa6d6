#include "quantizer/train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/format/vq_format.h"
#include "quantizer/nearest.h"
#include "quantizer/scalar.h"
#include "quantizer/train/kmeans.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// With fewer vectors per entry k-means fits the sample, not the distribution (FAISS' rule).
constexpr std::int64_t kPoorVectorsPerEntry = 39;

// A well mixed number for each (seed, unit, stage): the finaliser of splitmix64.
std::uint64_t mixed_seed(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + (stream + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void require_count(std::int64_t fewest, int entries, const std::string& name) {
  if (fewest >= entries) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: {} sub-vectors cannot train {} entries; calibrate on more tokens, "
                          "lower index_bits, or widen the scope",
                          name, fewest, entries));
}

std::int64_t sub_vectors(const UnitMap& map, std::int64_t unit, std::int64_t batch, int size) {
  return map.extent(unit).elements() * batch / size;
}

std::int64_t fewest_sub_vectors(const UnitMap& map, std::int64_t batch, int size) {
  std::int64_t fewest = sub_vectors(map, 0, batch, size);
  for (std::int64_t unit = 1; unit < map.units(); ++unit) {
    fewest = std::min(fewest, sub_vectors(map, unit, batch, size));
  }
  return fewest;
}

// Fewer or few sub-vectors for a codebook: refused, or warned of.
void check_count(const TrainRequest& request, std::int64_t fewest) {
  const int entries = request.format.entries();
  require_count(fewest, entries, request.name);
  if (fewest < kPoorVectorsPerEntry * entries && request.options.warn) {
    request.options.warn(
        fmt::format("{}: {} sub-vectors for {} entries are few (under {} an "
                    "entry): the codebook will not carry over to other data; "
                    "calibrate on more tokens, or lower index_bits",
                    request.name, fewest, entries, kPoorVectorsPerEntry));
  }
}

// Reports progress of a tensor's training, from 0 to 1.
void report(const TrainRequest& request, double done, const std::string& what) {
  if (request.options.progress) request.options.progress(done, request.name + what);
}

// Stage after stage of tables, for all books at once.
class TableTrainer {
 public:
  // Units come in groups of `together`, such as a head's.
  TableTrainer(VectorBooks& books, const TrainRequest& request, std::size_t together)
      : request_(request),
        format_(request.format),
        books_(books),
        units_(static_cast<std::size_t>(books.shape().books())),
        together_(together),
        stage_size_(static_cast<std::size_t>(format_.entries() * format_.vector_size)),
        stages_(static_cast<std::size_t>(format_.num_codebooks)) {}

  Codebooks train() {
    Codebooks result{format_, request_.dtype, books_.shape().books(), {}, {}, {}};
    result.entries.resize(units_ * stages_ * stage_size_);
    if (format_.stage_scales) result.stage_scales.resize(units_ * stages_);
    for (std::size_t stage = 0; stage < stages_; ++stage) train_stage(stage, result);
    if (format_.stage_scales) fill_dead_scales(result);
    report(request_, 1.0, "");
    return result;
  }

 private:
  void train_stage(std::size_t stage, Codebooks& result) {
    const std::vector<SumFactors> factors = factors_of_books();
    const std::vector<float> scales =
        format_.stage_scales ? deviations(factors) : std::vector<float>(units_, 1.0f);
    KMeansRequest kmeans_request{
        format_.entries(), request_.options.iterations, {}, factors, [&](int iteration) {
          const double all = static_cast<double>(stages_) * request_.options.iterations;
          const auto before = static_cast<double>(stage) * request_.options.iterations;
          report(request_, (before + iteration) / all,
                 fmt::format(": {} codebooks, stage {} of {}, iteration {} of at most {}", units_,
                             stage + 1, stages_, iteration + 1, request_.options.iterations));
        }};
    for (std::size_t unit = 0; unit < units_; ++unit) {
      kmeans_request.seeds.push_back(mixed_seed(~request_.options.seed, unit * stages_ + stage));
    }
    std::vector<float> entries = kmeans(books_, kmeans_request);
    for (std::size_t unit = 0; unit < units_; ++unit) {
      const std::size_t number = unit * stages_ + stage;
      const bool given = format_.common_scale && stage > 0;  // shared with the first stage
      const float scale =
          store(std::span(entries).subspan(unit * stage_size_, stage_size_),
                given ? result.stage_scales[unit * stages_] : scales[unit], given,
                std::span(result.entries).subspan(number * stage_size_, stage_size_));
      if (format_.stage_scales) result.stage_scales[number] = scale;
    }
    if (stage + 1 < stages_) books_.subtract(entries);
  }

  // Sets the scales of all-zero entries, which any scale fits: the least of the stage, or else that
  // of the previous stage.
  void fill_dead_scales(Codebooks& result) const {
    std::vector<float> scales(units_);
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      for (std::size_t unit = 0; unit < units_; ++unit) {
        const std::size_t number = unit * stages_ + stage;
        const auto entries = std::span(result.entries).subspan(number * stage_size_, stage_size_);
        const bool dead = std::all_of(entries.begin(), entries.end(), [this](std::uint16_t entry) {
          return element_to_float(request_.dtype, entry) == 0;
        });
        scales[unit] = dead ? 0.0f : result.stage_scales[number];
      }
      fill_dead(scales, together_);
      for (std::size_t unit = 0; unit < units_; ++unit) {
        const std::size_t number = unit * stages_ + stage;
        float& scale = result.stage_scales[number];
        const float before = stage > 0 ? result.stage_scales[number - 1] : scale;
        scale = scales[unit] > 0 && !(format_.common_scale && stage > 0) ? scales[unit] : before;
      }
    }
  }

  std::vector<SumFactors> factors_of_books() const {
    std::vector<SumFactors> factors;
    for (const float peak : books_.peaks()) {
      if (!(peak <= kMostMagnitude)) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: an element is {}; elements must be finite and at most 2^60",
                                request_.name, peak));
      }
      factors.push_back(sum_factors(peak,
                                    books_.shape().count(static_cast<std::int64_t>(factors.size())),
                                    format_.vector_size));
    }
    return factors;
  }

  // The root mean square of each book's elements: what they miss an entry of zeros by.
  std::vector<float> deviations(std::span<const SumFactors> factors) const {
    const auto size = static_cast<std::size_t>(format_.vector_size);
    std::vector<std::int64_t> sums;
    books_.sum(std::vector<float>(units_ * size, 0.0f), factors, sums);
    std::vector<float> result;
    for (std::size_t unit = 0; unit < units_; ++unit) {
      const std::int64_t* const sum = sums.data() + unit * (size + 2) + size;
      const double elements = static_cast<double>(sum[1]) * static_cast<double>(size);
      const double mean = static_cast<double>(sum[0]) / factors[unit].distance / elements;
      const auto root = static_cast<float>(std::sqrt(mean));
      result.push_back(root > 0 ? root : 1.0f);
    }
    return result;
  }

  // Stores a stage's entries, from which `scale` has been divided out, and returns the scale of the
  // stored form: for integers a new one, unless `scale` is `given`, which clamps them.
  float store(std::span<float> entries, float scale, bool given,
              std::span<std::uint16_t> stored) const {
    const bool integers = format_.entry_type == EntryType::int8;
    const auto most = static_cast<float>(format_.entry_peak());
    if (integers && !given) scale *= peak(entries, scale) / most;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      float value = entries[i] / scale;
      if (integers) value = std::clamp(std::round(value), -most, most);
      stored[i] = entry_bits(value, request_.dtype, request_.name);
      entries[i] = scale * element_to_float(request_.dtype, stored[i]);
    }
    return scale;
  }

  // Largest magnitude in units of the scale; 1 if all are zero.
  static float peak(std::span<const float> values, float scale) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value / scale));
    return most > 0 ? most : 1.0f;
  }

  const TrainRequest& request_;
  const VqFormat& format_;
  VectorBooks& books_;
  std::size_t units_;
  std::size_t together_;
  std::size_t stage_size_;
  std::size_t stages_;
};

// The units of a tensor.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request)
      : request_(request),
        format_(request.format),
        tensor_(*request.calibration),
        map_(unit_map(format_, tensor_.heads, tensor_.rows, tensor_.columns, request.name)),
        size_(static_cast<std::size_t>(format_.vector_size)) {}

  Codebooks train() {
    if (format_.decoder == Decoder::e8p) return train_lattice();
    if (format_.is_scalar()) return train_scales();
    check_count(request_, fewest_sub_vectors(map_, tensor_.batch, format_.vector_size));
    std::vector<float> vectors;
    BookShape shape{format_.vector_size, {0}};
    for (std::int64_t unit = 0; unit < map_.units(); ++unit) {
      sample(unit, vectors);
      shape.begins.push_back(static_cast<std::int64_t>(vectors.size() / size_));
    }
    const auto books = request_.options.make_books(std::move(vectors), std::move(shape));
    return TableTrainer(*books, request_, units_of_head()).train();
  }

 private:
  // Adjacent units.
  std::size_t units_of_head() const {
    return static_cast<std::size_t>(ceil_div(map_.columns, map_.unit_columns));
  }

  // A lattice has one number to be fitted where a table has thousands.
  std::int64_t most_vectors() const {
    if (format_.decoder == Decoder::e8p) return 8192;
    return std::max(request_.options.max_points,
                    std::int64_t{request_.options.max_points_per_entry} * format_.entries());
  }

  // Appends the unit's sub-vectors in order, or an even choice of them where they are too many
  // (Knuth's algorithm S); with signs their magnitudes, which entries are.
  void sample(std::int64_t unit, std::vector<float>& vectors) const {
    const bool signs = format_.decoder == Decoder::signs;
    std::int64_t left = sub_vectors(map_, unit, tensor_.batch, format_.vector_size);
    std::int64_t wanted = std::min(left, most_vectors());
    std::mt19937_64 random(mixed_seed(request_.options.seed, static_cast<std::uint64_t>(unit)));
    for_each_sub_vector(map_, map_.extent(unit), tensor_.batch, format_.vector_size,
                        [&](std::int64_t row, std::int64_t column) {
                          if (wanted == left || random() % static_cast<std::uint64_t>(left) <
                                                    static_cast<std::uint64_t>(wanted)) {
                            const auto vector =
                                tensor_.row(row).subspan(static_cast<std::size_t>(column), size_);
                            for (const float x : vector) vectors.push_back(signs ? std::abs(x) : x);
                            --wanted;
                          }
                          --left;
                        });
  }

  // Scales from the largest magnitude of the elements that a scale serves: of one channel if a unit
  // has no more channels than a code. All-zero channels take the least scale of the head.
  Codebooks train_scales() const {
    Codebooks result{format_, request_.dtype, map_.units(), {}, {}, {}};
    const bool by_channel = format_.scope == Scope::channel_group &&
                            format_.channels_per_group() == format_.vector_size;
    if (format_.token_scales || format_.group_tokens > 0) {
      result.entries.assign(size_, element_from_float(request_.dtype, 1.0f));
      return result;
    }
    std::vector<float> all_peaks(static_cast<std::size_t>(map_.units()) * size_, 0.0f);
    for (std::int64_t unit = 0; unit < map_.units(); ++unit) {
      const auto peaks =
          std::span(all_peaks).subspan(static_cast<std::size_t>(unit) * size_, size_);
      for_each_sub_vector(map_, map_.extent(unit), tensor_.batch, format_.vector_size,
                          [&](std::int64_t row, std::int64_t column) {
                            const auto vector =
                                tensor_.row(row).subspan(static_cast<std::size_t>(column), size_);
                            for (std::size_t d = 0; d < size_; ++d) {
                              peaks[d] = std::max(peaks[d], std::abs(vector[d]));
                            }
                          });
      if (!by_channel) {
        std::fill(peaks.begin(), peaks.end(), *std::max_element(peaks.begin(), peaks.end()));
      }
    }
    fill_dead(all_peaks, units_of_head() * size_);
    for (const float peak : all_peaks) {
      const std::uint16_t scale = scalar_scale(format_, request_.dtype, peak);
      if (!std::isfinite(element_to_float(request_.dtype, scale))) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: the scale of numbers up to {} is beyond {}; use bf16",
                                request_.name, peak, enum_name(request_.dtype)));
      }
      result.entries.push_back(scale);
    }
    report(request_, 1.0, "");
    return result;
  }

  Codebooks train_lattice() const {
    Codebooks result{format_, request_.dtype, map_.units(), {}, {}, {}};
    for (std::int64_t unit = 0; unit < map_.units(); ++unit) {
      std::vector<float> num_codebooks;
      sample(unit, num_codebooks);
      for (int stage = 0; stage < format_.num_codebooks; ++stage) {
        const double done = static_cast<double>(unit * format_.num_codebooks + stage);
        report(request_, done / static_cast<double>(map_.units() * format_.num_codebooks),
               fmt::format(": codebook {} of {}, stage {} of {}", unit + 1, map_.units(), stage + 1,
                           format_.num_codebooks));
        fit_lattice(stage, num_codebooks, result);
      }
    }
    report(request_, 1.0, "");
    return result;
  }

  // The scale of a stage, and in `num_codebooks` what its points miss.
  void fit_lattice(int stage, std::vector<float>& num_codebooks, Codebooks& result) const {
    const std::vector<float> table = e8p_table();
    for (const float value : table) {
      result.entries.push_back(element_from_float(request_.dtype, value));
    }
    const float scale = format_.stage_scales ? lattice_scale(table, num_codebooks) : 1.0f;
    if (format_.stage_scales) result.stage_scales.push_back(scale);
    if (stage + 1 == format_.num_codebooks) return;

    std::vector<std::uint32_t> nearest(num_codebooks.size() / size_);
    NearestPoint(table, scale).find(num_codebooks, nearest);
    std::vector<float> point(size_);
    for (std::size_t i = 0; i < nearest.size(); ++i) {
      const std::size_t entry = format_.entry_of(nearest[i]);
      lattice_point(std::span(table).subspan(entry * size_, size_), nearest[i], point);
      for (std::size_t d = 0; d < size_; ++d) num_codebooks[i * size_ + d] -= scale * point[d];
    }
  }

  const TrainRequest& request_;
  const VqFormat& format_;
  const FloatTensor& tensor_;
  UnitMap map_;
  std::size_t size_;
};

}  // namespace

std::uint16_t entry_bits(float entry, DType dtype, const std::string& name) {
  const std::uint16_t bits = element_from_float(dtype, entry);
  if (std::isfinite(element_to_float(dtype, bits))) return bits;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: an entry of {} is beyond {}; use bf16, or stage_scales", name, entry,
                          enum_name(dtype)));
}

float root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  const auto root = static_cast<float>(std::sqrt(sum / static_cast<double>(values.size())));
  return root > 0 ? root : 1.0f;
}

void require_trainable(const VqFormat& format, const FloatTensor& sizes, const std::string& name) {
  if (has_basis(format)) {
    throw Error(ErrorKind::bad_input, name +
                                          ": vqgen.hf.calibrate() in Python trains formats with "
                                          "center or klt; use that, or leave both out");
  }
  for (const VqFormat& part : format.parts) {
    FloatTensor of_part{sizes.batch, sizes.heads, sizes.rows, std::ssize(part.channels), {}};
    require_trainable(part_alone(part), of_part, name);
  }
  if (format.in_parts()) return;
  const UnitMap map = unit_map(format, sizes.heads, sizes.rows, sizes.columns, name);
  if (!format.has_own_entries()) return;
  require_count(fewest_sub_vectors(map, sizes.batch, format.vector_size), format.entries(), name);
}

Codebooks train_codebooks(const TrainRequest& request) {
  require_supported(request.format, request.name);
  if (request.calibration == nullptr || request.calibration->data.empty()) {
    throw Error(ErrorKind::bad_input,
                request.name + ": the calibration is empty; give tokens to train on");
  }
  return Trainer(request).train();
}

Codebooks train_books(VectorBooks& books, const TrainRequest& request) {
  require_supported(request.format, request.name);
  std::int64_t fewest = books.shape().count(0);
  for (std::int64_t book = 1; book < books.shape().books(); ++book) {
    fewest = std::min(fewest, books.shape().count(book));
  }
  check_count(request, fewest);
  return TableTrainer(books, request, static_cast<std::size_t>(books.shape().books())).train();
}

}  // namespace vqgen

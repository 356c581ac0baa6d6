#include "quantizer/train/weight_job.h"

#include <fmt/format.h>

#include "core/problem/problem.h"
#include "quantizer/model_folder.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMaxFeatures = 1 << 24;

// [out_features, in_features], without its data.
FloatTensor matrix_sizes(const SafetensorsFile& file, const std::string& name) {
  const std::vector<std::int64_t>& shape = file.floats(name).shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > kMaxFeatures ||
      shape[1] > kMaxFeatures) {
    file.fail(name,
              fmt::format("has shape {}; weights are [out_features, in_features], each 1 to {}",
                          shape_text(shape), kMaxFeatures));
  }
  return FloatTensor{1, 1, shape[0], shape[1], {}};
}

TensorJob tensor_job(const WeightJob& job, const FloatTensor& weights,
                     const TrainOptions& options) {
  return {job.name, job.source(), job.format, job.dtype, &weights, &weights, options};
}

}  // namespace

std::string WeightJob::source() const { return fmt::format("{}: {}", file->source(), tensor); }

QuantizedTensor judge_weight(const WeightJob& job) {
  const FloatTensor sizes = matrix_sizes(*job.file, job.tensor);
  const Problem problem = Gemv{{job.dtype, {1, sizes.rows, sizes.columns}, job.format}};
  require_problem(problem, job.source(), job.any_format);
  require_sizes(job.format, sizes, job.source(), sizes, job.source());
  return weight_sizes(job.format, job.dtype, sizes.rows, sizes.columns, job.source());
}

FloatTensor read_weight(const WeightJob& job) {
  FloatTensor weights = matrix_sizes(*job.file, job.tensor);
  weights.data = read_trainable(*job.file, job.tensor);
  return weights;
}

void judge_numbers(const WeightJob& job, const FloatTensor& weights) {
  require_values(tensor_job(job, weights, {}), job.source());
}

QuantizedTensor quantize_weight(const WeightJob& job, const FloatTensor& weights,
                                const TrainOptions& options, std::vector<TensorReport>& report) {
  return quantize_tensor(tensor_job(job, weights, options), report);
}

}  // namespace vqgen

#include <fmt/format.h>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/train/quantize.h"
#include "quantizer/train/tensor_job.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMaxFeatures = 1 << 24;
constexpr std::int64_t kMaxInputs = 65535;

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

class WeightsQuantizer {
 public:
  explicit WeightsQuantizer(const QuantizeWeightsRequest& request)
      : request_(request), file_(request.input) {}

  QuantizeResult run() const {
    const std::vector<PatternMatch> matches =
        match_tensors(file_, request_.weights, "--weights", request_);
    std::vector<BundleItem> planned;
    judge_each(matches, [&](const PatternMatch& match) { planned.push_back(judge(match)); });
    judge_each(matches, [&](const PatternMatch& match) { read_all(match); });
    for (const BundleItem& item : planned) {
      if (request_.judged) request_.judged(item);
    }
    QuantizeResult result;
    for (const PatternMatch& match : matches) {
      const TrainOptions options =
          part_of(request_.options, result.bundle.items.size(), matches.size());
      LinearData data = quantize(match, options, result.report);
      result.bundle.items.push_back({match.item, std::move(data)});
    }
    return result;
  }

 private:
  std::string source_of(const PatternMatch& match) const {
    return fmt::format("{}: {}", file_.source(), match.tensor);
  }
  // Empty where no inputs are asked for.
  std::string inputs_of(const PatternMatch& match) const {
    const bool same_for_all = star_count(request_.inputs) == 0;
    return same_for_all ? request_.inputs : companion(request_.inputs, match, "--inputs");
  }

  // Checks the item's format and sizes by the headers.
  BundleItem judge(const PatternMatch& match) const {
    const FloatTensor weights = matrix_sizes(file_, match.tensor);
    LinearData data;
    data.dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
    const Problem problem = Gemv{{data.dtype, {1, weights.rows, weights.columns}, request_.format}};
    require_problem(problem, source_of(match), request_.any_format);
    require_sizes(request_.format, weights, source_of(match), weights, source_of(match));
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      const std::vector<std::int64_t>& shape = file_.floats(inputs).shape;
      if (shape.size() != 2 || shape[1] != weights.columns || shape[0] < 1 ||
          shape[0] > kMaxInputs) {
        file_.fail(inputs, fmt::format("has shape {}; inputs are [n, in_features] = [1 to {}, {}]",
                                       shape_text(shape), kMaxInputs, weights.columns));
      }
      data.input_rows = shape[0];
    }
    data.weights.format = request_.format;
    data.weights.dtype = data.dtype;
    data.weights.rows = weights.rows;
    data.weights.columns = weights.columns;
    return {match.item, std::move(data)};
  }

  // Checks the data, of which nothing is kept.
  void read_all(const PatternMatch& match) const {
    if (request_.options.progress) request_.options.progress(0, "reading " + match.tensor);
    const DType dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
    FloatTensor weights = matrix_sizes(file_, match.tensor);
    weights.data = read_trainable(file_, match.tensor);
    require_values(job_of(match, dtype, weights, request_.options), source_of(match));
    if (request_.keep_original) to_bits(weights.data, dtype, file_, match.tensor);
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      to_bits(file_.read_finite(inputs), dtype, file_, inputs);
    }
  }

  TensorJob job_of(const PatternMatch& match, DType dtype, const FloatTensor& weights,
                   const TrainOptions& options) const {
    return {match.item + ".weights",
            source_of(match),
            request_.format,
            dtype,
            &weights,
            &weights,
            options};
  }

  LinearData quantize(const PatternMatch& match, const TrainOptions& options,
                      std::vector<TensorReport>& report) const {
    LinearData data;
    data.dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
    FloatTensor weights = matrix_sizes(file_, match.tensor);
    weights.data = read_trainable(file_, match.tensor);
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      data.input_rows = file_.at(inputs).shape[0];
      data.x = to_bits(file_.read_finite(inputs), data.dtype, file_, inputs);
    }
    data.weights = quantize_tensor(job_of(match, data.dtype, weights, options), report);
    if (request_.keep_original) {
      data.original_weights = to_bits(weights.data, data.dtype, file_, match.tensor);
    }
    return data;
  }

  const QuantizeWeightsRequest& request_;
  SafetensorsFile file_;
};

}  // namespace

QuantizeResult quantize_weights(const QuantizeWeightsRequest& request) {
  return WeightsQuantizer(request).run();
}

}  // namespace vqgen

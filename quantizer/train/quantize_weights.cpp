#include <fmt/format.h>

#include "core/error.h"
#include "quantizer/train/quantize.h"
#include "quantizer/train/weight_job.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMaxInputs = 65535;

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
  WeightJob job_of(const PatternMatch& match) const {
    return {&file_,
            match.tensor,
            match.item + ".weights",
            request_.format,
            choose_dtype(request_.dtype, file_.at(match.tensor)),
            request_.any_format};
  }
  // Empty where no inputs are asked for.
  std::string inputs_of(const PatternMatch& match) const {
    const bool same_for_all = star_count(request_.inputs) == 0;
    return same_for_all ? request_.inputs : companion(request_.inputs, match, "--inputs");
  }

  // Checks the item's format and sizes by the headers.
  BundleItem judge(const PatternMatch& match) const {
    LinearData data;
    data.weights = judge_weight(job_of(match));
    data.dtype = data.weights.dtype;
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      const std::vector<std::int64_t>& shape = file_.floats(inputs).shape;
      if (shape.size() != 2 || shape[1] != data.weights.columns || shape[0] < 1 ||
          shape[0] > kMaxInputs) {
        file_.fail(inputs, fmt::format("has shape {}; inputs are [n, in_features] = [1 to {}, {}]",
                                       shape_text(shape), kMaxInputs, data.weights.columns));
      }
      data.input_rows = shape[0];
    }
    return {match.item, std::move(data)};
  }

  // Checks the data, of which nothing is kept.
  void read_all(const PatternMatch& match) const {
    if (request_.options.progress) request_.options.progress(0, "reading " + match.tensor);
    const WeightJob job = job_of(match);
    const FloatTensor weights = read_weight(job);
    judge_numbers(job, weights);
    if (request_.keep_original) to_bits(weights.data, job.dtype, file_, match.tensor);
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      to_bits(file_.read_finite(inputs), job.dtype, file_, inputs);
    }
  }

  LinearData quantize(const PatternMatch& match, const TrainOptions& options,
                      std::vector<TensorReport>& report) const {
    const WeightJob job = job_of(match);
    LinearData data;
    data.dtype = job.dtype;
    const FloatTensor weights = read_weight(job);
    if (const std::string inputs = inputs_of(match); !inputs.empty()) {
      data.input_rows = file_.at(inputs).shape[0];
      data.x = to_bits(file_.read_finite(inputs), data.dtype, file_, inputs);
    }
    data.weights = quantize_weight(job, weights, options, report);
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

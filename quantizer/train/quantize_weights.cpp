#include <fmt/format.h>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/name_pattern.h"
#include "quantizer/train/quantize.h"
#include "quantizer/train/tensor_job.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMaxFeatures = 1 << 24;
constexpr std::int64_t kMaxInputs = 65535;

FloatTensor read_matrix(const SafetensorsFile& file, const std::string& name) {
  const std::vector<std::int64_t>& shape = file.at(name).shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > kMaxFeatures ||
      shape[1] > kMaxFeatures) {
    file.fail(name,
              fmt::format("has shape {}; weights are [out_features, in_features], each 1 to {}",
                          shape_text(shape), kMaxFeatures));
  }
  return FloatTensor{1, 1, shape[0], shape[1], read_finite(file, name)};
}

// `name` as the item's x.
void read_inputs(const SafetensorsFile& file, const std::string& name, LinearData& data,
                 std::int64_t in_features) {
  const std::vector<std::int64_t>& shape = file.at(name).shape;
  if (shape.size() != 2 || shape[1] != in_features || shape[0] < 1 || shape[0] > kMaxInputs) {
    file.fail(name, fmt::format("has shape {}; inputs are [n, in_features] = [1 to {}, {}]",
                                shape_text(shape), kMaxInputs, in_features));
  }
  data.input_rows = shape[0];
  data.x = to_bits(read_finite(file, name), data.dtype, file, name);
}

}  // namespace

QuantizeResult quantize_weights(const QuantizeWeightsRequest& request) {
  const SafetensorsFile file(request.input);
  const std::vector<PatternMatch> matches = match_tensors(file, request.weights, "--weights");
  QuantizeResult result;
  for (const PatternMatch& match : matches) {
    LinearData data;
    data.dtype = choose_dtype(request.dtype, file.at(match.tensor));
    const FloatTensor weights = read_matrix(file, match.tensor);
    const Problem problem = Gemv{{data.dtype, {1, weights.rows, weights.columns}, request.format}};
    const std::string source = fmt::format("{}: {}", file.source(), match.item);
    validate(problem, source);
    if (!request.any_format) require_kernel(problem, source);
    if (!request.inputs.empty()) {
      const bool same_for_all = star_count(request.inputs) == 0;
      read_inputs(file,
                  same_for_all ? request.inputs : companion(request.inputs, match, "--inputs"),
                  data, weights.columns);
    }
    const TensorJob job{match.item + ".weights",
                        fmt::format("{}: {}", file.source(), match.tensor),
                        request.format,
                        data.dtype,
                        &weights,
                        &weights,
                        part_of(request.options, result.bundle.items.size(), matches.size())};
    data.weights = quantize_tensor(job, result.report);
    if (request.keep_original) {
      data.original_weights = to_bits(weights.data, data.dtype, file, match.tensor);
    }
    result.bundle.items.push_back({match.item, std::move(data)});
  }
  return result;
}

}  // namespace vqgen

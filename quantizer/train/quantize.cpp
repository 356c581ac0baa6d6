#include "quantizer/train/quantize.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/encode.h"
#include "quantizer/train/split.h"
#include "quantizer/train/tensor_job.h"

namespace vqgen {
namespace {

// [batch, kv_heads, tokens, head_dim]; batch may be missing.
FloatTensor read_cache(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.at(name);
  const std::vector<std::int64_t>& shape = info.shape;
  if (shape.size() != 3 && shape.size() != 4) {
    file.fail(name,
              fmt::format("has shape {}; a KV cache is [kv_heads, tokens, head_dim] or [batch, "
                          "kv_heads, tokens, head_dim]",
                          shape_text(shape)));
  }
  const std::size_t first = shape.size() - 3;
  FloatTensor tensor;
  tensor.batch = first == 1 ? shape[0] : 1;
  tensor.heads = shape[first];
  tensor.rows = shape[first + 1];
  tensor.columns = shape[first + 2];
  const auto inside = [](std::int64_t size, std::int64_t most) {
    return size >= 1 && size <= most;
  };
  if (!inside(tensor.batch, 65535) || !inside(tensor.heads, 65535) ||
      !inside(tensor.rows, 2147483647) || !inside(tensor.columns, 1024)) {
    file.fail(name, fmt::format("has shape {}; batch and heads must be 1 to 65535, tokens at least "
                                "1, head_dim 1 to 1024",
                                shape_text(shape)));
  }
  tensor.data = file.read_finite(name);
  return tensor;
}

class KvQuantizer {
 public:
  explicit KvQuantizer(const QuantizeKvRequest& request)
      : request_(request),
        key_format_(request.key_format),
        value_format_(for_values(request.value_format)),
        file_(request.input) {
    if (!request.calibration.empty()) calibration_.emplace(request.calibration);
  }

  QuantizeResult run() {
    const std::vector<PatternMatch> matches = match_tensors(file_, request_.keys, "--keys");
    QuantizeResult result;
    if (request_.split_by) split(matches);
    for (const PatternMatch& match : matches) {
      const std::string values_name = companion(request_.values, match, "--values");
      const std::string queries_name =
          request_.queries.empty() ? "" : companion(request_.queries, match, "--queries");
      const std::size_t part = 2 * result.bundle.items.size();
      const auto options = [&](std::size_t tensor) {
        return part_of(request_.options, part + tensor, 2 * matches.size());
      };
      AttentionData data;
      data.dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
      const FloatTensor keys = read_cache(file_, match.tensor);
      const FloatTensor values = read_cache(file_, values_name);
      read_queries(queries_name, keys, data);
      check(match, values_name, keys, values, data);
      data.keys = quantize(match.tensor, match.item + ".keys", key_format_, keys, data.dtype,
                           options(0), result.report, true);
      data.values = quantize(values_name, match.item + ".values", value_format_, values, data.dtype,
                             options(1), result.report, false);
      if (request_.keep_original) {
        data.original_keys = to_bits(keys.data, data.dtype, file_, match.tensor);
        data.original_values = to_bits(values.data, data.dtype, file_, values_name);
      }
      result.bundle.items.push_back({match.item, std::move(data)});
    }
    return result;
  }

 private:
  // Shares the channels of key_format_ out by what one quantizer makes of them.
  void split(const std::vector<PatternMatch>& matches) {
    if (!key_format_.in_parts()) {
      throw Error(ErrorKind::bad_input,
                  "the key format is not in parts, among which channels could be shared out; give "
                  "parts, or do not split");
    }
    std::vector<double> sums;
    for (const PatternMatch& match : matches) {
      const SafetensorsFile& file = calibration_ ? *calibration_ : file_;
      const FloatTensor keys = read_cache(file, match.tensor);
      const std::string source = fmt::format("{}: {}", file.source(), match.tensor);
      AttentionDecode problem{DType::f16, {}, key_format_, value_format_};
      problem.shape = {.batch = 1, .query_heads = 1, .kv_heads = 1};
      problem.shape.head_dim = static_cast<int>(keys.columns);
      problem.shape.tokens = keys.rows;
      problem.shape.window = least_window(problem.keys, problem.values);
      validate(problem, source);
      problem.keys = *request_.split_by;
      validate(problem, "the format to split by");
      const TensorJob job{match.item + ".keys",
                          source,
                          *request_.split_by,
                          choose_dtype(request_.dtype, file_.at(match.tensor)),
                          &keys,
                          &keys,
                          request_.options,
                          false};
      std::vector<TensorReport> unused;
      const std::vector<double> errors =
          channel_errors(keys, reconstruct(quantize_tensor(job, unused)));
      sums.resize(errors.size());
      for (std::size_t i = 0; i < errors.size(); ++i) sums[i] += errors[i];
    }
    key_format_ = share_channels(key_format_, sums);
  }

  // From [query_heads, n, head_dim] to [n][query_heads][head_dim], with lengths.
  void read_queries(const std::string& name, const FloatTensor& keys, AttentionData& data) const {
    if (name.empty()) return;
    const std::vector<std::int64_t>& shape = file_.at(name).shape;
    if (shape.size() != 3 || shape[2] != keys.columns || shape[1] < 1 || shape[1] > keys.rows ||
        shape[1] > 65535 || shape[0] < 1 || shape[0] % keys.heads != 0) {
      file_.fail(
          name,
          fmt::format("has shape {}; queries are [query_heads, n, head_dim] with query_heads a "
                      "multiple of {}, n 1 to {}, head_dim {}",
                      shape_text(shape), keys.heads, std::min<std::int64_t>(keys.rows, 65535),
                      keys.columns));
    }
    if (keys.batch != 1) {
      file_.fail(name, fmt::format("goes with one sequence, but the keys hold {}; leave the "
                                   "queries out or quantize sequences one by one",
                                   keys.batch));
    }
    const std::vector<std::uint16_t> bits =
        to_bits(file_.read_finite(name), data.dtype, file_, name);
    data.query_heads = shape[0];
    data.batch = shape[1];
    const auto columns = static_cast<std::size_t>(keys.columns);
    data.queries.reserve(bits.size());
    for (std::int64_t query = 0; query < data.batch; ++query) {
      for (std::int64_t head = 0; head < data.query_heads; ++head) {
        const auto row = static_cast<std::size_t>(head * data.batch + query) * columns;
        const auto begin = bits.begin() + static_cast<std::ptrdiff_t>(row);
        data.queries.insert(data.queries.end(), begin,
                            begin + static_cast<std::ptrdiff_t>(columns));
      }
      data.lengths.push_back(static_cast<std::int32_t>(keys.rows - data.batch + query + 1));
    }
  }

  void check(const PatternMatch& match, const std::string& values_name, const FloatTensor& keys,
             const FloatTensor& values, const AttentionData& data) const {
    if (std::tuple(values.batch, values.heads, values.rows, values.columns) !=
        std::tuple(keys.batch, keys.heads, keys.rows, keys.columns)) {
      file_.fail(values_name, fmt::format("has shape {} but its keys '{}' have {}; they must agree",
                                          shape_text(file_.at(values_name).shape), match.tensor,
                                          shape_text(file_.at(match.tensor).shape)));
    }
    AttentionDecode problem{data.dtype, {}, key_format_, value_format_};
    problem.shape.batch = static_cast<int>(std::max<std::int64_t>(data.batch, keys.batch));
    problem.shape.kv_heads = static_cast<int>(keys.heads);
    problem.shape.query_heads = static_cast<int>(data.batch > 0 ? data.query_heads : keys.heads);
    problem.shape.head_dim = static_cast<int>(keys.columns);
    problem.shape.tokens = keys.rows;
    problem.shape.window = least_window(problem.keys, problem.values);
    require_problem(problem, fmt::format("{}: {}", file_.source(), match.item),
                    request_.any_format);
  }

  QuantizedTensor quantize(const std::string& tensor, const std::string& name,
                           const VqFormat& format, const FloatTensor& input, DType dtype,
                           const TrainOptions& options, std::vector<TensorReport>& report,
                           bool keys) const {
    TensorJob job{
        name, fmt::format("{}: {}", file_.source(), tensor), format, dtype, &input, &input, options,
        keys};
    FloatTensor calibration;
    if (calibration_) {
      calibration = read_cache(*calibration_, tensor);
      if (calibration.heads != input.heads || calibration.columns != input.columns) {
        calibration_->fail(
            tensor, fmt::format("has shape {} but the input's has {}; heads and head_dim must "
                                "agree",
                                shape_text(calibration_->at(tensor).shape),
                                shape_text(file_.at(tensor).shape)));
      }
      job.calibration = &calibration;
      job.source = fmt::format("{}: {}", calibration_->source(), tensor);
    }
    return quantize_tensor(job, report);
  }

  const QuantizeKvRequest& request_;
  VqFormat key_format_;
  VqFormat value_format_;
  SafetensorsFile file_;
  std::optional<SafetensorsFile> calibration_;
};

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
  return FloatTensor{1, 1, shape[0], shape[1], file.read_finite(name)};
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
  data.x = to_bits(file.read_finite(name), data.dtype, file, name);
}

}  // namespace

QuantizeResult quantize_kv(const QuantizeKvRequest& request) { return KvQuantizer(request).run(); }

QuantizeResult quantize_weights(const QuantizeWeightsRequest& request) {
  const SafetensorsFile file(request.input);
  const std::vector<PatternMatch> matches = match_tensors(file, request.weights, "--weights");
  QuantizeResult result;
  for (const PatternMatch& match : matches) {
    LinearData data;
    data.dtype = choose_dtype(request.dtype, file.at(match.tensor));
    const FloatTensor weights = read_matrix(file, match.tensor);
    const Problem problem = Gemv{{data.dtype, {1, weights.rows, weights.columns}, request.format}};
    require_problem(problem, fmt::format("{}: {}", file.source(), match.item), request.any_format);
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
                        part_of(request.options, result.bundle.items.size(), matches.size()),
                        false};
    data.weights = quantize_tensor(job, result.report);
    if (request.keep_original) {
      data.original_weights = to_bits(weights.data, data.dtype, file, match.tensor);
    }
    result.bundle.items.push_back({match.item, std::move(data)});
  }
  return result;
}

}  // namespace vqgen

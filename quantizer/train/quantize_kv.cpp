#include <fmt/format.h>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/train/quantize.h"
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
  tensor.data = read_finite(file, name);
  return tensor;
}

struct Names {
  std::string keys, values, queries;  // queries may be empty
};

class KvQuantizer {
 public:
  explicit KvQuantizer(const QuantizeKvRequest& request)
      : request_(request), value_format_(for_values(request.value_format)), file_(request.input) {
    if (!request.calibration.empty()) calibration_.emplace(request.calibration);
  }

  QuantizeResult run() {
    const std::vector<PatternMatch> matches = match_tensors(file_, request_.keys, "--keys");
    QuantizeResult result;
    for (const PatternMatch& match : matches) {
      Names names{match.tensor, companion(request_.values, match, "--values"), ""};
      if (!request_.queries.empty()) {
        names.queries = companion(request_.queries, match, "--queries");
      }
      const std::size_t part = 2 * result.bundle.items.size();
      const auto options = [&](std::size_t tensor) {
        return part_of(request_.options, part + tensor, 2 * matches.size());
      };
      AttentionData data;
      data.dtype = choose_dtype(request_.dtype, file_.at(names.keys));
      const FloatTensor keys = read_cache(file_, names.keys);
      const FloatTensor values = read_cache(file_, names.values);
      read_queries(names, keys, data);
      check(names, match.item, keys, values, data);
      data.keys = quantize(names.keys, match.item + ".keys", request_.key_format, keys, data.dtype,
                           options(0), result.report);
      data.values = quantize(names.values, match.item + ".values", value_format_, values,
                             data.dtype, options(1), result.report);
      if (request_.keep_original) {
        data.original_keys = to_bits(keys.data, data.dtype, file_, names.keys);
        data.original_values = to_bits(values.data, data.dtype, file_, names.values);
      }
      result.bundle.items.push_back({match.item, std::move(data)});
    }
    return result;
  }

 private:
  // From [query_heads, n, head_dim] to [n][query_heads][head_dim], with lengths.
  void read_queries(const Names& names, const FloatTensor& keys, AttentionData& data) const {
    if (names.queries.empty()) return;
    const std::vector<std::int64_t>& shape = file_.at(names.queries).shape;
    if (shape.size() != 3 || shape[2] != keys.columns || shape[1] < 1 || shape[1] > keys.rows ||
        shape[1] > 65535 || shape[0] < 1 || shape[0] % keys.heads != 0) {
      file_.fail(
          names.queries,
          fmt::format("has shape {}; queries are [query_heads, n, head_dim] with query_heads a "
                      "multiple of {}, n 1 to {}, head_dim {}",
                      shape_text(shape), keys.heads, std::min<std::int64_t>(keys.rows, 65535),
                      keys.columns));
    }
    if (keys.batch != 1) {
      file_.fail(names.queries,
                 fmt::format("goes with one sequence, but the keys hold {}; leave the "
                             "queries out or quantize sequences one by one",
                             keys.batch));
    }
    const std::vector<std::uint16_t> bits =
        to_bits(read_finite(file_, names.queries), data.dtype, file_, names.queries);
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

  void check(const Names& names, const std::string& item, const FloatTensor& keys,
             const FloatTensor& values, const AttentionData& data) const {
    if (std::tuple(values.batch, values.heads, values.rows, values.columns) !=
        std::tuple(keys.batch, keys.heads, keys.rows, keys.columns)) {
      file_.fail(names.values,
                 fmt::format("has shape {} but its keys '{}' have {}; they must agree",
                             shape_text(file_.at(names.values).shape), names.keys,
                             shape_text(file_.at(names.keys).shape)));
    }
    AttentionDecode problem{data.dtype, {}, request_.key_format, value_format_};
    problem.shape.batch = static_cast<int>(std::max<std::int64_t>(data.batch, keys.batch));
    problem.shape.kv_heads = static_cast<int>(keys.heads);
    problem.shape.query_heads = static_cast<int>(data.batch > 0 ? data.query_heads : keys.heads);
    problem.shape.head_dim = static_cast<int>(keys.columns);
    problem.shape.tokens = keys.rows;
    const std::string source = fmt::format("{}: {}", file_.source(), item);
    validate(problem, source);
    if (!request_.any_format) require_kernel(problem, source);
  }

  QuantizedTensor quantize(const std::string& tensor, const std::string& name,
                           const VqFormat& format, const FloatTensor& input, DType dtype,
                           const TrainOptions& options, std::vector<TensorReport>& report) const {
    TensorJob job{
        name,   fmt::format("{}: {}", file_.source(), tensor), format, dtype, &input, &input,
        options};
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
  VqFormat value_format_;
  SafetensorsFile file_;
  std::optional<SafetensorsFile> calibration_;
};

}  // namespace

QuantizeResult quantize_kv(const QuantizeKvRequest& request) { return KvQuantizer(request).run(); }

}  // namespace vqgen

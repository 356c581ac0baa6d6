#include "quantizer/train/quantize.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/problem/problem.h"
#include "quantizer/encode.h"
#include "quantizer/train/split.h"
#include "quantizer/train/tensor_job.h"

namespace vqgen {
namespace {

// [batch, kv_heads, tokens, head_dim], without its data; batch may be missing.
FloatTensor cache_sizes(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.floats(name);
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
  return tensor;
}

FloatTensor read_cache(const SafetensorsFile& file, const std::string& name) {
  FloatTensor tensor = cache_sizes(file, name);
  tensor.data = read_trainable(file, name);
  return tensor;
}

// Heads of values may have another size than those of keys.
bool same_tokens(const FloatTensor& keys, const FloatTensor& values) {
  return std::tuple(keys.batch, keys.heads, keys.rows) ==
         std::tuple(values.batch, values.heads, values.rows);
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
    const std::vector<PatternMatch> matches =
        match_tensors(file_, request_.keys, "--keys", request_);
    std::vector<BundleItem> planned;
    judge_each(matches, [&](const PatternMatch& match) { planned.push_back(judge(match)); });
    judge_each(matches, [&](const PatternMatch& match) { read_all(match); });
    for (const BundleItem& item : planned) {
      if (request_.judged) request_.judged(item);
    }
    QuantizeResult result;
    if (request_.split_by) split(matches);
    for (const PatternMatch& match : matches) {
      const Names names = names_of(match);
      const std::size_t part = 2 * result.bundle.items.size();
      const auto options = [&](std::size_t tensor) {
        return part_of(request_.options, part + tensor, 2 * matches.size());
      };
      AttentionData data;
      data.dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
      const FloatTensor keys = read_cache(file_, match.tensor);
      const FloatTensor values = read_cache(file_, names.values);
      read_queries(names.queries, keys, data);
      data.keys = quantize(match.tensor, match.item + ".keys", key_format_, keys, data.dtype,
                           options(0), result.report, true);
      data.values = quantize(names.values, match.item + ".values", value_format_, values,
                             data.dtype, options(1), result.report, false);
      if (request_.keep_original) {
        data.original_keys = to_bits(keys.data, data.dtype, file_, match.tensor);
        data.original_values = to_bits(values.data, data.dtype, file_, names.values);
      }
      result.bundle.items.push_back({match.item, std::move(data)});
    }
    return result;
  }

 private:
  struct Names {
    std::string values, queries;
  };
  Names names_of(const PatternMatch& match) const {
    return {companion(request_.values, match, "--values"),
            request_.queries.empty() ? "" : companion(request_.queries, match, "--queries")};
  }
  const SafetensorsFile& trained_on() const { return calibration_ ? *calibration_ : file_; }

  // Checks the item's formats and sizes by the headers.
  BundleItem judge(const PatternMatch& match) const {
    const Names names = names_of(match);
    AttentionData data;
    data.dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
    const FloatTensor keys = cache_sizes(file_, match.tensor);
    const FloatTensor values = cache_sizes(file_, names.values);
    if (!same_tokens(keys, values)) {
      file_.fail(names.values,
                 fmt::format("has shape {} but its keys '{}' have {}; they must agree except in "
                             "head_dim",
                             shape_text(file_.at(names.values).shape), match.tensor,
                             shape_text(file_.at(match.tensor).shape)));
    }
    judge_queries(names.queries, keys, data);
    judge_problem(match, keys, values, data);
    judge_tensor(match.tensor, key_format_, keys);
    judge_tensor(names.values, value_format_, values);
    if (request_.split_by) judge_split(match, values);
    data.keys.format = key_format_;
    data.values.format = value_format_;
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
      tensor->dtype = data.dtype;
      tensor->batch = keys.batch;
      tensor->heads = keys.heads;
      tensor->rows = keys.rows;
    }
    data.keys.columns = keys.columns;
    data.values.columns = values.columns;
    return {match.item, std::move(data)};
  }

  void judge_tensor(const std::string& tensor, const VqFormat& format,
                    const FloatTensor& input) const {
    const SafetensorsFile& file = trained_on();
    const FloatTensor calibration = cache_sizes(file, tensor);
    if (calibration.heads != input.heads || calibration.columns != input.columns) {
      file.fail(tensor,
                fmt::format("has shape {} but the input's has {}; heads and head_dim must "
                            "agree",
                            shape_text(file.at(tensor).shape), shape_text(file_.at(tensor).shape)));
    }
    require_sizes(format, input, fmt::format("{}: {}", file_.source(), tensor), calibration,
                  fmt::format("{}: {}", file.source(), tensor));
  }

  // Checks the data, of which nothing is kept.
  void read_all(const PatternMatch& match) const {
    const Names names = names_of(match);
    const DType dtype = choose_dtype(request_.dtype, file_.at(match.tensor));
    for (const bool keys : {true, false}) {
      const std::string& tensor = keys ? match.tensor : names.values;
      if (request_.options.progress) request_.options.progress(0, "reading " + tensor);
      const FloatTensor input = read_cache(file_, tensor);
      if (request_.keep_original) to_bits(input.data, dtype, file_, tensor);
      std::optional<FloatTensor> calibration;
      if (calibration_) calibration = read_cache(*calibration_, tensor);
      TensorJob job{.name = match.item,
                    .source = fmt::format("{}: {}", trained_on().source(), tensor),
                    .format = keys ? key_format_ : value_format_,
                    .dtype = dtype,
                    .input = &input,
                    .calibration = calibration ? &*calibration : &input,
                    .options = request_.options};
      require_values(job, fmt::format("{}: {}", file_.source(), tensor));
      if (!keys || !request_.split_by) continue;
      job.format = *request_.split_by;
      job.input = job.calibration;
      require_values(job, job.source);
    }
    if (!names.queries.empty())
      to_bits(file_.read_finite(names.queries), dtype, file_, names.queries);
  }

  void judge_split(const PatternMatch& match, const FloatTensor& values) const {
    if (!key_format_.in_parts()) {
      throw Error(ErrorKind::bad_input,
                  "the key format is not in parts, among which channels could be shared out; give "
                  "parts, or do not split");
    }
    const FloatTensor keys = cache_sizes(trained_on(), match.tensor);
    AttentionDecode problem{DType::f16, {}, *request_.split_by, value_format_};
    problem.shape = {.batch = 1, .query_heads = 1, .kv_heads = 1};
    problem.shape.head_dim = static_cast<int>(keys.columns);
    problem.shape.value_head_dim = static_cast<int>(values.columns);
    problem.shape.tokens = keys.rows;
    problem.shape.recent_tokens = least_window(problem.keys, problem.values);
    validate(problem, "the format to split by");
    const std::string source = fmt::format("{}: {}", trained_on().source(), match.tensor);
    require_sizes(*request_.split_by, keys, source, keys, source);
  }

  // Shares the channels of key_format_ out by what one quantizer makes of them.
  void split(const std::vector<PatternMatch>& matches) {
    std::vector<double> sums;
    for (const PatternMatch& match : matches) {
      const SafetensorsFile& file = trained_on();
      const FloatTensor keys = read_cache(file, match.tensor);
      const std::string source = fmt::format("{}: {}", file.source(), match.tensor);
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

  void judge_queries(const std::string& name, const FloatTensor& keys, AttentionData& data) const {
    if (name.empty()) return;
    const std::vector<std::int64_t>& shape = file_.floats(name).shape;
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
    data.query_heads = shape[0];
    data.batch = shape[1];
  }

  // Reads queries [query_heads, n, head_dim] as [n][query_heads][head_dim], with lengths.
  void read_queries(const std::string& name, const FloatTensor& keys, AttentionData& data) const {
    if (name.empty()) return;
    judge_queries(name, keys, data);
    const std::vector<std::uint16_t> bits =
        to_bits(file_.read_finite(name), data.dtype, file_, name);
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

  void judge_problem(const PatternMatch& match, const FloatTensor& keys, const FloatTensor& values,
                     const AttentionData& data) const {
    AttentionDecode problem{data.dtype, {}, key_format_, value_format_};
    problem.shape.batch = static_cast<int>(std::max<std::int64_t>(data.batch, keys.batch));
    problem.shape.kv_heads = static_cast<int>(keys.heads);
    problem.shape.query_heads = static_cast<int>(data.batch > 0 ? data.query_heads : keys.heads);
    problem.shape.head_dim = static_cast<int>(keys.columns);
    if (values.columns != keys.columns) {
      problem.shape.value_head_dim = static_cast<int>(values.columns);
    }
    problem.shape.tokens = keys.rows;
    problem.shape.recent_tokens = least_window(problem.keys, problem.values);
    require_problem(problem, fmt::format("{}: {}", file_.source(), match.item),
                    request_.any_format);
  }

  QuantizedTensor quantize(const std::string& tensor, const std::string& name,
                           const VqFormat& format, const FloatTensor& input, DType dtype,
                           const TrainOptions& options, std::vector<TensorReport>& report,
                           bool keys) const {
    TensorJob job{name,
                  fmt::format("{}: {}", file_.source(), tensor),
                  format,
                  dtype,
                  &input,
                  &input,
                  options,
                  keys,
                  keys && request_.key_gain};
    FloatTensor calibration;
    if (calibration_) {
      calibration = read_cache(*calibration_, tensor);
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

}  // namespace

QuantizeResult quantize_kv(const QuantizeKvRequest& request) { return KvQuantizer(request).run(); }

}  // namespace vqgen

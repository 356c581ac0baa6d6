#include "quantizer/train/tensor_job.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "core/problem/check.h"
#include "quantizer/encode.h"
#include "quantizer/name_pattern.h"
#include "quantizer/transform.h"

namespace vqgen {
namespace {

std::vector<float> row_scales(const FloatTensor& weights) {
  std::vector<float> scales;
  for (std::int64_t index = 0; index < weights.row_count(); ++index) {
    double sum = 0;
    for (const float value : weights.row(index)) sum += double{value} * value;
    const auto root = static_cast<float>(std::sqrt(sum / static_cast<double>(weights.columns)));
    scales.push_back(root > 0 ? root : 1.0f);
  }
  return scales;
}

// The terms that stand outside the codes, from the calibration.
struct OuterTerms {
  std::vector<float> smooth;
  std::vector<float> output_scales;
};

// `tensor` in the domain that is quantized.
FloatTensor inner_domain(FloatTensor tensor, const VqFormat& format, const OuterTerms& outer) {
  transform_keys(tensor, format, outer.smooth);
  for (std::size_t row = 0; row < outer.output_scales.size(); ++row) {
    for (float& value : tensor.row(static_cast<std::int64_t>(row))) {
      value /= outer.output_scales[row];
    }
  }
  return tensor;
}

QuantizedTensor encode_with(const FloatTensor& inner, const Codebooks& codebooks,
                            const OuterTerms& outer) {
  QuantizedTensor result = encode(inner, codebooks);
  result.smooth = outer.smooth;
  result.output_scales = outer.output_scales;
  return result;
}

}  // namespace

QuantizedTensor quantize_tensor(const TensorJob& job, std::vector<TensorReport>& report) {
  OuterTerms outer;
  if (job.format.smooth) outer.smooth = smooth_factors(*job.calibration);
  if (job.format.output_scales) outer.output_scales = row_scales(*job.input);
  const FloatTensor calibration = inner_domain(*job.calibration, job.format, outer);
  TrainRequest request{job.source, job.format, job.dtype, &calibration, job.options};
  const Codebooks codebooks = train_codebooks(request);

  TensorReport line;
  line.name = job.name;
  line.format = short_name(job.format);
  QuantizedTensor result = encode_with(calibration, codebooks, outer);
  line.calibration = reconstruction_error(*job.calibration, reconstruct(result));
  line.input = line.calibration;
  if (job.calibration != job.input) {
    result = encode_with(inner_domain(*job.input, job.format, outer), codebooks, outer);
    line.input = reconstruction_error(*job.input, reconstruct(result));
  }
  line.bits_per_element =
      static_cast<double>(result.row_words * 32) / static_cast<double>(result.columns);
  line.codebook_bytes = static_cast<std::int64_t>(result.codebooks.size() * 2);
  report.push_back(line);
  return result;
}

std::vector<PatternMatch> match_tensors(const SafetensorsFile& file, const std::string& pattern,
                                        const std::string& option) {
  std::vector<PatternMatch> matches;
  std::set<std::string> items;
  for (const TensorInfo& info : file.tensors()) {
    const auto texts = match_pattern(pattern, info.name);
    if (!texts) continue;
    matches.push_back({info.name, item_name(info.name), *texts});
    if (!items.insert(matches.back().item).second) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: {} '{}' matches two tensors of '{}', such as '{}'; narrow the "
                              "pattern",
                              file.source(), option, pattern, matches.back().item, info.name));
    }
  }
  if (matches.empty() && star_count(pattern) == 0) file.at(pattern);
  if (matches.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {} '{}' matches no tensor; the file has {}", file.source(), option,
                            pattern, file.some_names()));
  }
  return matches;
}

std::string companion(const std::string& pattern, const PatternMatch& match,
                      const std::string& option) {
  if (star_count(pattern) != match.texts.size()) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{} '{}' has {} stars where the pattern that matched '{}' has {}; give "
                    "as many",
                    option, pattern, star_count(pattern), match.tensor, match.texts.size()));
  }
  return fill_pattern(pattern, match.texts);
}

std::vector<std::uint16_t> to_bits(const std::vector<float>& values, DType dtype,
                                   const SafetensorsFile& file, const std::string& tensor) {
  std::vector<std::uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) {
    bits.push_back(element_from_float(dtype, value));
    if (!std::isfinite(element_to_float(dtype, bits.back()))) {
      file.fail(tensor, fmt::format("element {} is {}, beyond {}; use bf16", bits.size() - 1, value,
                                    enum_name(dtype)));
    }
  }
  return bits;
}

void require_kernel(const Problem& problem, const std::string& source) {
  const Verdict verdict = check(problem);
  if (verdict.ok) return;
  throw Error(ErrorKind::infeasible,
              fmt::format("{}: no kernel reads it: {}; or write it for other programs with "
                          "--any-format",
                          source, verdict.reason));
}

std::vector<float> read_finite(const SafetensorsFile& file, const std::string& tensor) {
  std::vector<float> values = file.read_floats(tensor);
  require_finite(values, file.source(), tensor);
  return values;
}

DType choose_dtype(const std::optional<DType>& asked, const TensorInfo& info) {
  if (asked) return *asked;
  return info.type == TensorType::bf16 ? DType::bf16 : DType::f16;
}

TrainOptions part_of(const TrainOptions& options, std::size_t part, std::size_t parts) {
  TrainOptions result = options;
  if (options.progress) {
    result.progress = [progress = options.progress, part, parts](double fraction,
                                                                 const std::string& label) {
      progress((static_cast<double>(part) + fraction) / static_cast<double>(parts), label);
    };
  }
  return result;
}

}  // namespace vqgen

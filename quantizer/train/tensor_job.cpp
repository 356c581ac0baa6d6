#include "quantizer/train/tensor_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <set>

#include "core/error.h"
#include "core/problem/check.h"
#include "quantizer/encode.h"
#include "quantizer/group_scales.h"
#include "quantizer/parts.h"
#include "quantizer/scalar.h"
#include "quantizer/train/gain.h"
#include "quantizer/transform.h"

namespace vqgen {
namespace {

std::vector<float> row_scales(const FloatTensor& weights) {
  std::vector<float> scales;
  for (std::int64_t index = 0; index < weights.row_count(); ++index) {
    scales.push_back(root_mean_square(weights.row(index)));
  }
  return scales;
}

// Scales outside the codes, from the calibration.
struct OuterTerms {
  std::vector<float> smooth;
  std::vector<float> output_scales;
};

OuterTerms outer_terms(const TensorJob& job) {
  OuterTerms outer;
  if (job.format.smooth) outer.smooth = smooth_factors(*job.calibration);
  if (job.format.output_scales) outer.output_scales = row_scales(*job.input);
  return outer;
}

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

// What entries stand for: the tensor, or that without the scales of groups of inputs.
FloatTensor trained_domain(const FloatTensor& inner, const TensorJob& job) {
  return job.format.group_inputs > 0 ? in_groups(inner, job.format, job.source) : inner;
}

void warn_of_clamped(const TensorJob& job, const FloatTensor& inner, const Codebooks& codebooks) {
  if (!job.format.is_scalar() || !job.options.warn) return;
  const std::int64_t rows = clamped_rows(inner, codebooks);
  if (rows == 0) return;
  job.options.warn(fmt::format(
      "{}: {} of {} tokens have elements beyond the scales of the calibration, which are clamped; "
      "calibrate on more tokens, or take token_scales",
      job.name, rows, inner.row_count()));
}

// Entries of the first stage are means of the values, and those of later stages hardly larger.
void require_entries(const TensorJob& job, const FloatTensor& inner) {
  const bool entries = job.format.has_own_entries();
  if (job.format.decoder == Decoder::e8p || (entries && job.format.stage_scales)) return;
  float most = 0;
  for (const float value : inner.data) most = std::max(most, std::abs(value));
  const std::uint16_t bits =
      entries ? element_from_float(job.dtype, most) : scalar_scale(job.format, job.dtype, most);
  if (std::isfinite(element_to_float(job.dtype, bits))) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: {} of numbers up to {:.6g} are beyond {}; use --dtype bf16{}",
                          job.source, entries ? "entries" : "scales", most, enum_name(job.dtype),
                          entries ? ", or a format with stage_scales" : ""));
}

// The job of part i alone, of which `input` and `calibration` are to be its channels.
TensorJob job_of_part(const TensorJob& job, std::size_t i, FloatTensor& input,
                      FloatTensor& calibration) {
  const std::vector<int>& channels = job.format.parts[i].channels;
  const bool same = job.calibration == job.input;
  input = take_channels(*job.input, channels);
  if (!same) calibration = take_channels(*job.calibration, channels);
  TensorJob part = job;
  part.name = fmt::format("{}, part {}", job.name, i);
  part.format = part_alone(job.format.parts[i]);
  part.options = part_of(job.options, i, job.format.parts.size());
  part.input = &input;
  part.calibration = same ? &input : &calibration;
  return part;
}

ReconstructionError centered_error(const FloatTensor& keys, const QuantizedTensor& quantized) {
  return reconstruction_error(centered(keys), centered(reconstruct(quantized)));
}

// Combines the errors of parts, each with its number of channels.
ReconstructionError error_of_parts(const FloatTensor& tensor,
                                   std::span<const std::pair<ReconstructionError, double>> parts) {
  double energy = 0;
  for (const float value : tensor.data) energy += double{value} * value;
  double error = 0;
  for (const auto& [each, channels] : parts) {
    error += each.mse * channels * static_cast<double>(tensor.row_count());
  }
  return {error / static_cast<double>(tensor.data.size()),
          error > 0 ? std::sqrt(error / energy) : 0};
}

// Each part on its own, from the same seed. The report has a line of each, and one of all.
QuantizedTensor quantize_parts(const TensorJob& job, std::vector<TensorReport>& report) {
  std::vector<QuantizedTensor> parts;
  TensorReport whole;
  whole.name = job.name;
  whole.format = short_name(job.format);
  std::vector<std::pair<ReconstructionError, double>> of_calibration, of_input;
  std::vector<std::pair<ReconstructionError, double>> centered_calibration, centered_input;
  for (std::size_t i = 0; i < job.format.parts.size(); ++i) {
    FloatTensor input, calibration;
    parts.push_back(quantize_tensor(job_of_part(job, i, input, calibration), report));
    const auto count = static_cast<double>(job.format.parts[i].channels.size());
    of_calibration.emplace_back(report.back().calibration, count);
    of_input.emplace_back(report.back().input, count);
    if (job.keys) {
      centered_calibration.emplace_back(report.back().centered->calibration, count);
      centered_input.emplace_back(report.back().centered->input, count);
    }
    whole.codebook_bytes += report.back().codebook_bytes;
  }
  whole.calibration = error_of_parts(*job.calibration, of_calibration);
  whole.input = error_of_parts(*job.input, of_input);
  if (job.keys) {
    whole.centered = {error_of_parts(centered(*job.calibration), centered_calibration),
                      error_of_parts(centered(*job.input), centered_input),
                      common_share(*job.input)};
  }
  whole.bits_per_element = static_cast<double>(job.format.row_words(job.input->columns) * 32) /
                           static_cast<double>(job.input->columns);
  report.push_back(whole);
  return join_parts(job.format, parts, job.input->columns);
}

}  // namespace

QuantizedTensor quantize_tensor(const TensorJob& job, std::vector<TensorReport>& report) {
  if (job.format.in_parts()) return quantize_parts(job, report);
  const OuterTerms outer = outer_terms(job);
  const FloatTensor calibration = inner_domain(*job.calibration, job.format, outer);
  const FloatTensor trained = trained_domain(calibration, job);
  TrainRequest request{job.source, job.format, job.dtype, &trained, job.options};
  Codebooks codebooks = train_codebooks(request);
  std::vector<float> gains;
  if (job.gain && job.format.decoder == Decoder::table) {
    gains = gains_of(codebooks, calibration, job.source);
  }

  TensorReport line;
  line.name = job.name;
  line.format = short_name(job.format);
  const auto encoded = [&](const FloatTensor& inner) {
    QuantizedTensor tensor = encode(inner, codebooks);
    tensor.smooth = outer.smooth;
    tensor.output_scales = outer.output_scales;
    tensor.gain = gains;
    return tensor;
  };
  QuantizedTensor result = encoded(calibration);
  line.calibration = reconstruction_error(*job.calibration, reconstruct(result));
  line.input = line.calibration;
  if (job.keys) {
    line.centered.emplace();
    line.centered->calibration = centered_error(*job.calibration, result);
    line.centered->input = line.centered->calibration;
    line.centered->common_share = common_share(*job.input);
  }
  if (job.calibration != job.input) {
    const FloatTensor inner = inner_domain(*job.input, job.format, outer);
    warn_of_clamped(job, inner, codebooks);
    result = encoded(inner);
    line.input = reconstruction_error(*job.input, reconstruct(result));
    if (job.keys) line.centered->input = centered_error(*job.input, result);
  }
  line.bits_per_element =
      static_cast<double>(result.row_words * 32) / static_cast<double>(result.columns);
  line.codebook_bytes = static_cast<std::int64_t>(result.codebooks.size() * 2);
  report.push_back(line);
  return result;
}

void require_values(const TensorJob& job, const std::string& input_source) {
  for (std::size_t i = 0; i < job.format.parts.size(); ++i) {
    FloatTensor input, calibration;
    require_values(job_of_part(job, i, input, calibration), input_source);
  }
  if (job.format.in_parts()) return;
  if (job.format.scale_words(job.input->columns) > 0) {
    require_scales(*job.calibration, job.format, job.dtype, job.source);
    if (job.calibration != job.input) {
      require_scales(*job.input, job.format, job.dtype, input_source);
    }
    return;
  }
  require_entries(
      job, trained_domain(inner_domain(*job.calibration, job.format, outer_terms(job)), job));
}

void require_sizes(const VqFormat& format, const FloatTensor& input, const std::string& source,
                   const FloatTensor& calibration, const std::string& calibration_source) {
  require_supported(format, source);
  const auto require_groups = [&](const FloatTensor& sizes, const std::string& where) {
    if (format.group_tokens == 0 || sizes.rows % format.group_tokens == 0) return;
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}: {} tokens are no whole groups of {} (group_tokens); cut them to {}", where,
                    sizes.rows, format.group_tokens,
                    sizes.rows / format.group_tokens * format.group_tokens));
  };
  require_groups(input, source);
  require_groups(calibration, calibration_source);
  require_trainable(format, calibration, calibration_source);
}

std::vector<float> read_trainable(const SafetensorsFile& file, const std::string& tensor) {
  std::vector<float> values = file.read_finite(tensor);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) <= kMostMagnitude) continue;
    file.fail(tensor,
              fmt::format("element {} is {}, beyond 2^60, which is the most that is trained "
                          "on; scale the tensor down",
                          i, values[i]));
  }
  return values;
}

std::vector<PatternMatch> match_tensors(const SafetensorsFile& file, const std::string& pattern,
                                        const std::string& option, const QuantizeRequest& request) {
  std::vector<PatternMatch> matches;
  std::set<std::string> items;
  std::vector<std::size_t> left_out(request.exclude.size());
  const auto excluded = [&](const std::string& name) {
    bool any = false;
    for (std::size_t i = 0; i < left_out.size(); ++i) {
      if (!match_pattern(request.exclude[i], name)) continue;
      ++left_out[i];
      any = true;
    }
    return any;
  };
  for (const TensorInfo& info : file.tensors()) {
    const auto texts = match_pattern(pattern, info.name);
    if (!texts || excluded(info.name)) continue;
    matches.push_back({info.name, item_name(info.name), *texts});
    if (!items.insert(matches.back().item).second) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: {} '{}' matches two tensors of '{}', such as '{}'; narrow the "
                              "pattern",
                              file.source(), option, pattern, matches.back().item, info.name));
    }
  }
  if (matches.empty() && star_count(pattern) == 0) file.at(pattern);
  const bool all_out = std::ranges::any_of(left_out, [](std::size_t count) { return count > 0; });
  if (matches.empty() && all_out) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: --exclude leaves out every tensor that {} '{}' matches; exclude "
                            "fewer",
                            file.source(), option, pattern));
  }
  if (matches.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {} '{}' matches no tensor; the file has {}", file.source(), option,
                            pattern, file.some_names()));
  }
  for (std::size_t i = 0; i < left_out.size(); ++i) {
    if (left_out[i] > 0 || !request.options.warn) continue;
    request.options.warn(fmt::format("--exclude '{}' leaves out nothing that {} '{}' matches",
                                     request.exclude[i], option, pattern));
  }
  return matches;
}

void judge_each(std::span<const PatternMatch> matches,
                const std::function<void(const PatternMatch&)>& judge) {
  std::optional<Error> first;
  std::vector<std::string> refused;
  for (const PatternMatch& match : matches) {
    try {
      judge(match);
    } catch (const Error& error) {
      if (!first) first = error;
      refused.push_back(match.tensor);
    }
  }
  if (!first) return;
  if (matches.size() == 1) throw *first;
  const std::string others =
      refused.size() == 1
          ? "or leave it"
          : fmt::format("'{}' is refused too, {} of {} tensors in all; or leave them", refused[1],
                        refused.size(), matches.size());
  throw Error(first->kind(), fmt::format("{}; {} out with --exclude", first->what(), others));
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

void require_problem(const Problem& problem, const std::string& source, bool any_format) {
  validate(problem, source);
  const Verdict verdict = check(problem);
  if (any_format || verdict.ok) return;
  throw Error(ErrorKind::infeasible,
              fmt::format("{}: no kernel reads it: {}; or write it for other programs with "
                          "--any-format",
                          source, verdict.reason));
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

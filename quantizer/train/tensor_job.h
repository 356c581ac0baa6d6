// The common part of quantize_kv and quantize_weights; internal to them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "quantizer/name_pattern.h"
#include "quantizer/train/quantize.h"

namespace vqgen {

// One tensor on its way to codes; the calibration may be the input itself.
struct TensorJob {
  std::string name;    // in the report: "layer0.keys"
  std::string source;  // for messages: file and tensor that it is trained on
  VqFormat format;
  DType dtype = DType::f16;
  const FloatTensor* input = nullptr;
  const FloatTensor* calibration = nullptr;
  TrainOptions options;
  bool keys = false;  // keys also have centered errors
  bool gain = false;  // applied to entries of tables (gain.h)
};

// Transforms or scales as the format says, trains, encodes, and appends to `report`.
QuantizedTensor quantize_tensor(const TensorJob& job, std::vector<TensorReport>& report);

// Throws what quantize_tensor() would for tensors of such sizes, before anything is trained;
// `source` and `calibration_source` are for messages. Data is not read.
void require_sizes(const VqFormat& format, const FloatTensor& input, const std::string& source,
                   const FloatTensor& calibration, const std::string& calibration_source);

// Throws Error(bad_input) that begins with the source of the values where entries or scales of them
// could be beyond the job's dtype, before anything is trained. `input_source` is the input's, as
// job.source is the calibration's.
void require_values(const TensorJob& job, const std::string& input_source);

// The values, read; Error(bad_input) where they are no finite numbers, or too large to train on.
std::vector<float> read_trainable(const SafetensorsFile& file, const std::string& tensor);

// Items of a file in order of their names, each with what the stars of `pattern` matched.
struct PatternMatch {
  std::string tensor;
  std::string item;
  std::vector<std::string> texts;
};
// Matches tensors, without those of request.exclude, and warns of names there that exclude none.
// Throws Error(bad_input) if nothing is left, or two tensors give items of one name.
std::vector<PatternMatch> match_tensors(const SafetensorsFile& file, const std::string& pattern,
                                        const std::string& option, const QuantizeRequest& request);

// Calls judge(match) for all, and only then throws the first Error of those, if any: of several
// matches with how many more are refused.
void judge_each(std::span<const PatternMatch> matches,
                const std::function<void(const PatternMatch&)>& judge);

// `pattern` for the item of `match`. Error(bad_input) unless it has as many stars.
std::string companion(const std::string& pattern, const PatternMatch& match,
                      const std::string& option);

// The values in `dtype`; Error(bad_input) where one is beyond it.
std::vector<std::uint16_t> to_bits(const std::vector<float>& values, DType dtype,
                                   const SafetensorsFile& file, const std::string& tensor);

// Error(bad_input) as validate() and, unless any format will do, Error(infeasible), which begins
// with `source`, where vqgen has no kernel for the problem.
void require_problem(const Problem& problem, const std::string& source, bool any_format);

// The asked one, else the tensor's own, else f16.
DType choose_dtype(const std::optional<DType>& asked, const TensorInfo& info);

// `options` with a progress that runs from part/parts to (part + 1)/parts.
TrainOptions part_of(const TrainOptions& options, std::size_t part, std::size_t parts);

}  // namespace vqgen

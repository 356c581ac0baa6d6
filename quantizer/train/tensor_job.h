// What quantize_kv and quantize_weights share. Not for others.
#pragma once

#include <string>
#include <vector>

#include "core/problem/problem.h"
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
};

// Transforms or scales as the format says, trains, encodes, and appends to `report`.
QuantizedTensor quantize_tensor(const TensorJob& job, std::vector<TensorReport>& report);

// Items of a file in order of their names, each with what the stars of `pattern` matched.
struct PatternMatch {
  std::string tensor;
  std::string item;
  std::vector<std::string> texts;
};
// Error(bad_input) where nothing matches, or two tensors would give items of one name.
std::vector<PatternMatch> match_tensors(const SafetensorsFile& file, const std::string& pattern,
                                        const std::string& option);

// `pattern` for the item of `match`. Error(bad_input) unless it has as many stars.
std::string companion(const std::string& pattern, const PatternMatch& match,
                      const std::string& option);

// The values in `dtype`; Error(bad_input) where one is beyond it.
std::vector<std::uint16_t> to_bits(const std::vector<float>& values, DType dtype,
                                   const SafetensorsFile& file, const std::string& tensor);

// Error(infeasible), which begins with `source`, where vqgen has no kernel for the problem.
void require_kernel(const Problem& problem, const std::string& source);

// Finite floats of a tensor.
std::vector<float> read_finite(const SafetensorsFile& file, const std::string& tensor);

// The asked one, else the tensor's own, else f16.
DType choose_dtype(const std::optional<DType>& asked, const TensorInfo& info);

// `options` with a progress that runs from part/parts to (part + 1)/parts.
TrainOptions part_of(const TrainOptions& options, std::size_t part, std::size_t parts);

}  // namespace vqgen

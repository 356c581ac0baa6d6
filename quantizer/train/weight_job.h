// One weight tensor of a file on its way to codes; internal to quantize_weights and quantize_model.
#pragma once

#include <string>
#include <vector>

#include "quantizer/train/tensor_job.h"

namespace vqgen {

struct WeightJob {
  const SafetensorsFile* file = nullptr;
  std::string tensor;
  std::string name;  // in the report
  VqFormat format;
  DType dtype = DType::f16;
  bool any_format = false;

  std::string source() const;  // file and tensor, for messages
};

// The weights as they will be, format and sizes without data. Throws what quantize_weight() would
// for a tensor of this header: Error(bad_input), and Error(infeasible) if no kernel reads the
// result.
QuantizedTensor judge_weight(const WeightJob& job);

// [out_features, in_features] with its data; Error(bad_input) if a number cannot be trained on.
FloatTensor read_weight(const WeightJob& job);

// Throws what quantize_weight() would for these numbers, before anything is trained.
void judge_numbers(const WeightJob& job, const FloatTensor& weights);

// Trains codebooks of the tensor and encodes it; appends to `report`.
QuantizedTensor quantize_weight(const WeightJob& job, const FloatTensor& weights,
                                const TrainOptions& options, std::vector<TensorReport>& report);

}  // namespace vqgen

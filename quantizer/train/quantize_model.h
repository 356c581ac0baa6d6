// Quantizes the linear layers of a Hugging Face model folder, one at a time, to a folder of the
// same kind (quantizer/model_folder.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/train/quantize.h"

namespace vqgen {

// A tensor that is quantized, or was by a run that this one continues.
struct LayerReport {
  std::string module;
  std::string format;         // "d8b8i8cx2"
  double relative_error = 0;  // |W - W'| / |W|
  bool from_earlier_run = false;
};

// What the whole folder will be, before the first layer is trained.
struct ModelPlan {
  std::size_t layers = 0;
  std::size_t finished_layers = 0;  // by an earlier run
  std::int64_t weights = 0;         // numbers that are quantized
  std::uint64_t quantized_bytes = 0;
  std::uint64_t dense_bytes = 0;
  std::vector<std::string> dense_modules;  // of two-dimensional weights
  std::vector<std::string> left_out;       // files and folders that are not copied
};

struct QuantizeModelRequest {
  std::filesystem::path model;
  std::filesystem::path out;
  VqFormat format;
  std::optional<DType> dtype;        // none: the weights' own, or f16 for F32
  bool any_format = false;           // also where no kernel reads the result
  std::vector<std::string> exclude;  // modules or tensors, by names that may hold stars
  std::string trained_on;            // the device, which the bytes depend on
  TrainOptions options;
  std::function<void(const ModelPlan& plan)> judged;  // may be empty; what it throws passes through
  // Called after each layer with how many are done, those of an earlier run included. May be empty.
  std::function<void(const LayerReport& layer, std::size_t done)> finished;
};

struct QuantizeModelResult {
  ModelPlan plan;
  std::vector<LayerReport> layers;
};

// Each two-dimensional NAME.weight within a numbered layer is quantized with codebooks of its own,
// but for routers of experts and what is excluded. Needs the memory of one layer's training. All is
// judged before the first layer is trained. A run that was killed is continued by one with an equal
// request, and both end with the bytes of a run that was not. Error(bad_input) on bad folders,
// Error(infeasible) if no kernel reads the result.
QuantizeModelResult quantize_model(const QuantizeModelRequest& request);

}  // namespace vqgen

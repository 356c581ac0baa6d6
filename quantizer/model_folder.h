// A quantized model folder, as `vqgen quantize MODEL_DIR` writes it: config.json with a
// quantization_config, and safetensors shards with an index. A quantized linear layer NAME has
//
//   NAME.codes          I32  [out_features, row words]; with a layout of R rows and W words
//                            [out_features / R, row words / W, R, W], rounded up
//   NAME.codebooks      F16 or BF16 [units, num_codebooks, entries, vector_size]
//   NAME.stage_scales   F32  [units, num_codebooks], where the format has them
//   NAME.output_scales  F32  [out_features], where the format has them
//   NAME.input_signs    F32  [in_features], NAME.output_signs F32 [out_features], of rotated layers
//
// instead of NAME.weight. All other tensors are the source's.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "quantizer/model_config.h"
#include "quantizer/safetensors.h"

namespace vqgen {

inline constexpr std::int64_t kMostFeatures = 1 << 24;  // of a side of weights

// A tensor of a quantized layer: what follows the layer's name, its type and shape.
struct WeightTensor {
  const char* suffix;
  TensorType type;
  std::vector<std::int64_t> shape;
};

// Weights as they will be, without data. Error(bad_input), which begins with `where`, for a format
// that is not of weights, and for sizes that it does not take.
QuantizedTensor weight_sizes(const VqFormat& format, DType dtype, std::int64_t out_features,
                             std::int64_t in_features, const std::string& where);
// The tensors of weights whose format, element type, sizes, row words and units are set.
std::vector<WeightTensor> weight_tensors(const QuantizedTensor& sizes, bool rotated = false);
// These tensors with their names in the files of module `name`; `end` is their bytes.
std::vector<TensorInfo> weight_infos(const std::string& name, const QuantizedTensor& sizes,
                                     bool rotated = false);
// The bytes of such a tensor of quantized weights, which stay theirs.
std::span<const std::byte> weight_bytes(const QuantizedTensor& weights, const WeightTensor& tensor);

// The tensors of a model folder: its index of shards, or its model.safetensors. Error(bad_input)
// where it has neither.
std::filesystem::path model_tensors_at(const std::filesystem::path& folder);

struct QuantizedLayer {
  std::string module;
  VqFormat format;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::uint64_t bytes = 0;           // of all of its tensors
  std::uint64_t codebook_bytes = 0;  // of those that are no codes
};

struct ModelFolder {
  ModelConfig config;
  QuantizationConfig quantization;
  std::vector<QuantizedLayer> layers;  // quantized linear layers, by name
  std::uint64_t dense_bytes = 0;
  std::int64_t dense_elements = 0;
};

// Reads headers alone. Error(bad_input) that names file and tensor for what does not fit: missing,
// misshapen and unknown tensors of quantized layers, formats that go against themselves, an index
// that lies, a layer of the decoder that has no tensors.
ModelFolder read_model_folder(const std::filesystem::path& folder);

// The number of the decoder's layer that a module belongs to: its first part that is a number; -1
// if there is none.
int layer_number(std::string_view module);

// Error(bad_input) if a layer below config.layers is not among the numbers of `modules`. `source`
// is the file that should have it.
void require_all_layers(const ModelConfig& config, std::span<const std::string> modules,
                        const std::string& source);

}  // namespace vqgen

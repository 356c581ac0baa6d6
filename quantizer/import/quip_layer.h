// A linear layer of a QuIP# checkpoint, and what its tensors become.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "quantizer/import/folder_import.h"

namespace vqgen {

inline constexpr std::int64_t kQuipWordInputs = 32;  // of one stage
inline constexpr float kQuipResidualScale = 3.45f;   // by which the second stage is divided

struct QuipLayer {
  TensorsPointer file;
  const TensorInfo* codes = nullptr;
  const TensorInfo* input_signs = nullptr;
  const TensorInfo* input_scales = nullptr;  // null without "rescale_WH"
  const TensorInfo* output_signs = nullptr;
  const TensorInfo* part_scales = nullptr;  // null of a layer that is one
  const TensorInfo* scale = nullptr;
  std::vector<std::int64_t> part_rows;
  std::int64_t rows = 0, columns = 0;
  int stages = 1;
  float residual_scale = kQuipResidualScale;
  DType dtype = DType::f16;
};

// What writes the tensor of the model folder that ends in `suffix`.
std::function<void(const TakeBytes&)> quip_writer(std::string_view suffix, const QuipLayer& layer);

}  // namespace vqgen

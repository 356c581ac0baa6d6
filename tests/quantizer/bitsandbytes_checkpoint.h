// A made-up checkpoint of bitsandbytes, with a layer that the package quantized.
#pragma once

#include <string>

#include "tests/quantizer/raw_checkpoint.h"
#include "tests/source_folder.h"

namespace vqgen {

inline const std::string kBitsandbytesModule = "model.layers.0.mlp.up_proj";

inline std::string bitsandbytes_samples() {
  return VQGEN_SOURCE_DIR "/tests/data/checkpoints/bitsandbytes.safetensors";
}

// `type`: "nf4", "nf4_double" or "fp4", a layer of 16 x 128.
inline RawCheckpoint bitsandbytes_checkpoint(const std::string& type) {
  RawCheckpoint made;
  made.config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                        {"load_in_4bit", true},
                                        {"bnb_4bit_quant_type", type.substr(0, 3)}};
  const SafetensorsFile file(bitsandbytes_samples());
  const std::string first = type + ".weight";
  for (const TensorInfo& info : file.tensors()) {
    if (!info.name.starts_with(first)) continue;
    made.add(kBitsandbytesModule + info.name.substr(type.size()), file, info.name);
  }
  made.add("model.norm.weight", "F16", {3}, std::vector<std::uint16_t>{1, 2, 3});
  return made;
}

}  // namespace vqgen

// A made-up QuIP# checkpoint of one layer of 32 x 128, with codes that the package packed.
#pragma once

#include "tests/quantizer/raw_checkpoint.h"
#include "tests/source_folder.h"

namespace vqgen {

inline std::string quip_samples() {
  return VQGEN_SOURCE_DIR "/tests/data/checkpoints/quip.safetensors";
}

// Signs have scales. `module` is several layers if it is qkv_proj or upgate_proj.
inline RawCheckpoint quip_checkpoint(const std::string& module) {
  RawCheckpoint made;
  made.config["quip_params"] = {
      {"codebook", "E8P12"},   {"codesz", 8},         {"packsz", 4},   {"idx_dtype", "torch.int64"},
      {"codebook_version", 1}, {"rescale_WH", false}, {"lora_rank", 0}};
  made.config["num_attention_heads"] = 4;
  made.config["num_key_value_heads"] = 2;
  made.config["head_dim"] = 4;
  const SafetensorsFile file(quip_samples());
  made.add(module + ".Qidxs", file, "Qidxs");
  std::vector<float> input(128), rescale(128), output(32);
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = (i % 3 == 0 ? -1.0f : 1.0f) * (1 + static_cast<float>(i) / 256);
    rescale[i] = 0.5f + static_cast<float>(i % 4);
  }
  for (std::size_t i = 0; i < output.size(); ++i) output[i] = i % 5 < 2 ? -1.5f : 1.25f;
  made.add(module + ".SU", "F32", {128}, input);
  made.add(module + ".SV", "F32", {32}, output);
  made.add(module + ".scaleWH", "F32", {128}, rescale);
  made.add(module + ".Wscale", "F32", {}, std::vector<float>{0.125f});
  made.add(module + ".codebook_id", "I64", {}, std::vector<std::int64_t>{7});
  if (module.ends_with("upgate_proj")) {
    made.add(module + ".fuse_scales", "F32", {2}, std::vector<float>{2, 0.5f});
  }
  if (module.ends_with("qkv_proj")) {
    made.add(module + ".fuse_scales", "F32", {3}, std::vector<float>{2, 0.5f, 4});
  }
  made.add("model.norm.weight", "F16", {3}, std::vector<std::uint16_t>{1, 2, 3});
  return made;
}

}  // namespace vqgen

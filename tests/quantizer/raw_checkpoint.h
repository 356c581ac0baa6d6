// A made-up checkpoint in one safetensors file, with tensors of any type.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/files/files.h"
#include "core/json/json.h"
#include "quantizer/safetensors.h"

namespace vqgen {

struct RawCheckpoint {
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };

  Json config = {{"model_type", "llama"}, {"num_hidden_layers", 1}, {"torch_dtype", "float16"}};
  std::map<std::string, Tensor> tensors;

  template <class T>
  void add(const std::string& name, const char* dtype, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors[name] = {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
  }
  // The tensor of another file.
  void add(const std::string& name, const SafetensorsFile& file, const std::string& from) {
    const TensorInfo& info = file.at(from);
    Tensor tensor{info.dtype, info.shape, std::vector<std::byte>(info.end - info.begin)};
    file.read_bytes(info, 0, tensor.bytes);
    tensors[name] = std::move(tensor);
  }

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<TensorInfo> infos;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      TensorInfo info{name, TensorType::other, tensor.dtype, tensor.shape, data.size()};
      data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      info.end = data.size();
      infos.push_back(std::move(info));
    }
    publish_text(folder / "model.safetensors", safetensors_header(infos, {}) + data);
    publish_text(folder / "config.json", config.dump(1));
    publish_text(folder / "tokenizer.json", "{}\n");
  }
};

}  // namespace vqgen

// Files of small tensors for quantize_kv() and quantize_weights(), and requests for them.
#pragma once

#include "quantizer/train/quantize.h"
#include "tests/quantizer/samples.h"
#include "tests/write_safetensors.h"

namespace vqgen {

// Writes float tensors as F16 and makes requests for them.
class Quantize : public ::testing::Test {
 protected:
  void add(const std::string& name, std::vector<std::int64_t> shape, std::uint32_t seed) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    names_.push_back(name);
    shapes_.push_back(std::move(shape));
    values_.push_back(samples::bits_of(samples::normal_floats(count, seed), DType::f16));
  }
  std::filesystem::path write(const std::string& name) {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      views.push_back(tensor_view(names_[i], TensorType::f16, shapes_[i], values_[i]));
    }
    write_safetensors(directory_ / name, views, {});
    return directory_ / name;
  }
  // Two layers of [2, 40, 16] with 8 queries of 4 heads.
  QuantizeKvRequest kv_request() {
    for (const std::string layer : {"layer0", "layer1"}) {
      add(layer + ".k", {2, 40, 16}, 1);
      add(layer + ".v", {2, 40, 16}, 2);
      add(layer + ".q", {4, 8, 16}, 3);
      add(layer + ".odd", {3, 8, 16}, 4);
    }
    QuantizeKvRequest request;
    request.any_format = true;  // of sizes that are quick to train
    request.input = write("kv.safetensors");
    request.keys = "layer*.k";
    request.values = "layer*.v";
    request.queries = "layer*.q";
    request.key_format = samples::table_format(4, 4, Scope::head);
    request.key_format.smooth = request.key_format.hadamard = true;
    request.value_format = request.key_format;
    return request;
  }

  samples::TemporaryDirectory directory_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::vector<std::uint16_t>> values_;
};

}  // namespace vqgen

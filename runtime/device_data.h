// Host data on a device and back, with the checks that every launch of a test or a run makes.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <vq/args/quantized.h>
#include "core/quantized_tensor.h"
#include "runtime/backend/backend.h"

namespace vqgen {

// Uploads inputs, poisons outputs, and tells afterwards whether an input was written. Owns the
// device memory; the pointers it returns live as long as it does.
class DeviceData {
 public:
  explicit DeviceData(Backend& backend) : backend_(backend) {}

  // A copy of `values` on the device, or null where it is empty. `values` must outlive this.
  // `offset` elements of slack stand before it, so that alignment can be made hard.
  template <class T>
  const T* input(const std::vector<T>& values, std::size_t offset = 0) {
    if (values.empty()) return nullptr;
    return static_cast<const T*>(add_input(std::as_bytes(std::span(values)), offset * sizeof(T)));
  }

  // `count` elements that poison_outputs() fills with 0xff bytes (NaN for every floating type);
  // outputs are numbered from 0.
  template <class T>
  T* output(std::size_t count, std::size_t offset = 0) {
    return static_cast<T*>(add_output(count * sizeof(T), offset * sizeof(T)));
  }

  // Fills all outputs with 0xff bytes again.
  void poison_outputs() const;

  // Brings output number `index` back.
  template <class T>
  std::vector<T> fetch(std::size_t index) const {
    std::vector<T> values((outputs_[index].buffer.bytes() - outputs_[index].offset) / sizeof(T));
    download(outputs_[index], std::as_writable_bytes(std::span(values)));
    return values;
  }

  // The kernel argument of a quantized tensor whose sequences are `shared` or stored apart.
  vq::QuantizedArgs quantized(const QuantizedTensor& tensor, bool shared, std::size_t offset = 0);

  // Error(verification_failed) names the first input that differs from what was uploaded.
  void require_inputs_unchanged() const;

 private:
  struct Block {
    DeviceBuffer buffer;
    std::size_t offset = 0;
    std::span<const std::byte> source;
  };
  const void* add_input(std::span<const std::byte> bytes, std::size_t offset);
  void* add_output(std::size_t bytes, std::size_t offset);
  void download(const Block& block, std::span<std::byte> to) const;

  Backend& backend_;
  std::vector<Block> inputs_;
  std::vector<Block> outputs_;
};

}  // namespace vqgen

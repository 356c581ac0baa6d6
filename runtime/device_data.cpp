#include "runtime/device_data.h"

#include <fmt/format.h>

namespace vqgen {

const void* DeviceData::add_input(std::span<const std::byte> bytes, std::size_t offset) {
  Block block{DeviceBuffer(backend_, offset + bytes.size()), offset, bytes};
  auto* begin = static_cast<std::byte*>(block.buffer.data()) + offset;
  backend_.upload(begin, bytes);
  inputs_.push_back(std::move(block));
  return begin;
}

void* DeviceData::add_output(std::size_t bytes, std::size_t offset) {
  Block block{DeviceBuffer(backend_, offset + bytes), offset, {}};
  auto* begin = static_cast<std::byte*>(block.buffer.data()) + offset;
  outputs_.push_back(std::move(block));
  return begin;
}

void DeviceData::poison_outputs() const {
  for (const Block& block : outputs_) {
    const std::vector<std::byte> poison(block.buffer.bytes(), std::byte{0xff});
    backend_.upload(block.buffer.data(), poison);
  }
}

void DeviceData::download(const Block& block, std::span<std::byte> to) const {
  backend_.download(to, static_cast<const std::byte*>(block.buffer.data()) + block.offset);
}

vq::QuantizedArgs DeviceData::quantized(const QuantizedTensor& tensor, bool shared,
                                        std::size_t offset) {
  vq::QuantizedArgs args{};
  args.codes = input(tensor.codes, offset);
  args.codebooks = input(tensor.codebooks);
  args.scales = input(tensor.stage_scales);
  args.head_stride = tensor.rows * tensor.row_words;
  args.batch_stride = shared ? 0 : tensor.heads * args.head_stride;
  return args;
}

void DeviceData::require_inputs_unchanged() const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    std::vector<std::byte> now(inputs_[i].source.size());
    download(inputs_[i], now);
    if (std::memcmp(now.data(), inputs_[i].source.data(), now.size()) != 0) {
      throw Error(ErrorKind::verification_failed,
                  fmt::format("the kernel wrote to its input number {}", i));
    }
  }
}

}  // namespace vqgen

#include "runtime/device_data.h"

#include <fmt/format.h>

#include <cstring>

namespace vqgen {
namespace {

std::vector<std::byte> guard_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte(i % 2 == 0 ? 0xfe : 0xff);
  return bytes;
}

}  // namespace

GuardedBuffer::GuardedBuffer(Backend& backend, std::size_t bytes, std::size_t guard,
                             std::size_t slack)
    : backend_(&backend),
      buffer_(backend, guard + slack + bytes + guard),
      bytes_(bytes),
      guard_(guard),
      before_(guard + slack) {
  raise_guards();
}

void GuardedBuffer::raise_guards(std::size_t bytes) {
  end_ = bytes;
  if (guard_ == 0) return;
  backend_->upload(buffer_.data(), guard_bytes(before_));
  backend_->upload(data() + end_, guard_bytes(guard_));
}

bool GuardedBuffer::whole() const {
  if (guard_ == 0) return true;
  std::vector<std::byte> before(before_), after(guard_);
  backend_->download(before, buffer_.data());
  backend_->download(after, data() + end_);
  return before == guard_bytes(before_) && after == guard_bytes(guard_);
}

const void* DeviceData::add_input(std::span<const std::byte> bytes, std::size_t offset) {
  Input input{GuardedBuffer(backend_, bytes.size(), guard_, offset), bytes};
  backend_.upload(input.buffer.data(), bytes);
  inputs_.push_back(std::move(input));
  return inputs_.back().buffer.data();
}

void* DeviceData::add_copy(std::span<const std::byte> bytes, std::size_t offset) {
  copies_.emplace_back(backend_, offset + bytes.size());
  std::byte* begin = static_cast<std::byte*>(copies_.back().data()) + offset;
  backend_.upload(begin, bytes);
  return begin;
}

void* DeviceData::add_output(std::size_t bytes, std::size_t offset) {
  outputs_.push_back({GuardedBuffer(backend_, bytes, guard_, offset)});
  return outputs_.back().buffer.data();
}

void DeviceData::poison_outputs() const {
  for (const Output& output : outputs_) {
    if (output.begins.empty()) {
      const std::vector<std::byte> poison(output.buffer.bytes(), std::byte{0xff});
      backend_.upload(output.buffer.data(), poison);
    } else {
      backend_.upload(output.buffer.data(), output.begins);
    }
  }
}

bool DeviceData::unchanged(const Input& input) const {
  std::vector<std::byte> now(input.source.size());
  backend_.download(now, input.buffer.data());
  return std::memcmp(now.data(), input.source.data(), now.size()) == 0;
}

void DeviceData::require_inputs_unchanged() const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!unchanged(inputs_[i])) {
      throw Error(ErrorKind::verification_failed,
                  fmt::format("the kernel wrote to its input number {}", i));
    }
  }
}

std::optional<std::string> DeviceData::take_damage() {
  std::optional<std::string> first;
  const auto note = [&](GuardedBuffer& buffer, const std::string& what) {
    buffer.raise_guards();
    if (!first) first = what;
  };
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    GuardedBuffer& output = outputs_[i].buffer;
    if (!output.whole()) note(output, fmt::format("output number {}, outside of it", i));
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    Input& input = inputs_[i];
    if (!input.buffer.whole()) note(input.buffer, fmt::format("input number {}, outside of it", i));
    if (unchanged(input)) continue;
    backend_.upload(input.buffer.data(), input.source);
    note(input.buffer, fmt::format("input number {}", i));
  }
  return first;
}

}  // namespace vqgen

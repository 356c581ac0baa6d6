// Host data on a device and back, with the checks that every launch of a test or a run makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace vqgen {

// Device memory between two guards, whose bytes are NaN in all 16-bit and 32-bit types and no 0xff
// throughout, so that no write of a poison passes for one.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // `guard` bytes stand before and after, none where it is 0; `slack` more before the data, which
  // count as the guard's.
  GuardedBuffer(Backend& backend, std::size_t bytes, std::size_t guard, std::size_t slack = 0);

  std::byte* data() const { return static_cast<std::byte*>(buffer_.data()) + before_; }
  std::size_t bytes() const { return bytes_; }
  // Makes the guards whole, the one after the data `bytes` behind its begin, `bytes` <= bytes().
  void raise_guards(std::size_t bytes);
  void raise_guards() { raise_guards(bytes_); }
  // Whether both are whole as they were raised last.
  bool whole() const;

 private:
  Backend* backend_ = nullptr;
  DeviceBuffer buffer_;
  std::size_t bytes_ = 0;
  std::size_t guard_ = 0;
  std::size_t before_ = 0;  // the guard and the slack
  std::size_t end_ = 0;     // of the data, where the second guard was raised
};

// Uploads inputs, poisons outputs, and tells afterwards whether an input was written. Owns the
// device memory; the pointers it returns live as long as it does.
class DeviceData {
 public:
  // `guard` bytes before and after each array, for take_damage(): a multiple of 256, so that arrays
  // keep their alignment. 0 leaves the judgement of accesses to the backend.
  explicit DeviceData(Backend& backend, std::size_t guard = 0) : backend_(backend), guard_(guard) {}

  // A copy of `values` on the device, or null where it is empty. `values` must outlive this.
  // `offset` bytes of slack stand before it, so that alignment can be made hard.
  template <class T>
  const T* input(const std::vector<T>& values, std::size_t offset = 0) {
    if (values.empty()) return nullptr;
    return static_cast<const T*>(add_input(std::as_bytes(std::span(values)), offset));
  }

  // One more copy of an input or a state, which is neither guarded nor looked at afterwards.
  template <class T>
  T* copy(const std::vector<T>& values, std::size_t offset = 0) {
    if (values.empty()) return nullptr;
    return static_cast<T*>(add_copy(std::as_bytes(std::span(values)), offset));
  }

  // `count` places of an input, the first of which is input()'s and the others are copies.
  template <class T>
  std::vector<const T*> inputs(const std::vector<T>& values, int count, std::size_t offset = 0) {
    std::vector<const T*> places{input(values, offset)};
    while (std::ssize(places) < count) places.push_back(copy(values, offset));
    return places;
  }

  // Likewise of a state. poison_outputs() fills the first alone.
  template <class T>
  std::vector<T*> states(const std::vector<T>& values, int count, std::size_t offset = 0) {
    std::vector<T*> places{state(values, offset)};
    while (std::ssize(places) < count) places.push_back(copy(values, offset));
    return places;
  }

  // `count` elements that poison_outputs() fills with 0xff bytes (NaN for every floating type);
  // outputs are numbered from 0.
  template <class T>
  T* output(std::size_t count, std::size_t offset = 0) {
    return static_cast<T*>(add_output(count * sizeof(T), offset));
  }

  // An output that poison_outputs() fills with `values` instead, which must outlive this: what a
  // kernel changes in part. Null where it is empty, but numbered all the same.
  template <class T>
  T* state(const std::vector<T>& values, std::size_t offset = 0) {
    T* const begin = output<T>(values.size(), offset);
    outputs_.back().begins = std::as_bytes(std::span(values));
    return values.empty() ? nullptr : begin;
  }

  // Fills all outputs with 0xff bytes again, or what a state begins with.
  void poison_outputs() const;

  // Brings output number `index` back.
  template <class T>
  std::vector<T> fetch(std::size_t index) const {
    const GuardedBuffer& buffer = outputs_[index].buffer;
    std::vector<T> values(buffer.bytes() / sizeof(T));
    backend_.download(std::as_writable_bytes(std::span(values)), buffer.data());
    return values;
  }

  // Error(verification_failed) names the first input that differs from what was uploaded.
  void require_inputs_unchanged() const;

  // What a launch wrote to beside the outputs, "input number 2" or "output number 0, outside of
  // it"; nullopt where it kept to them. All is as before afterwards, but for the outputs.
  std::optional<std::string> take_damage();

 private:
  struct Input {
    GuardedBuffer buffer;
    std::span<const std::byte> source;
  };
  struct Output {
    GuardedBuffer buffer;
    std::span<const std::byte> begins = {};  // of a state
  };
  const void* add_input(std::span<const std::byte> bytes, std::size_t offset);
  void* add_copy(std::span<const std::byte> bytes, std::size_t offset);
  void* add_output(std::size_t bytes, std::size_t offset);
  bool unchanged(const Input& input) const;

  Backend& backend_;
  std::size_t guard_;
  std::vector<Input> inputs_;
  std::vector<DeviceBuffer> copies_;
  std::vector<Output> outputs_;
};

}  // namespace vqgen

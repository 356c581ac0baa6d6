// Host data on a device and back, with the checks that every launch of a test or a run makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace vqgen {

// Device memory between two guards. Guard bytes are NaN in all 16-bit and 32-bit types but not all
// 0xff, so that a write of the poison shows.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // Puts `guard` bytes before and after, none if it is 0. `slack` more bytes come before the data
  // and count as the guard's.
  GuardedBuffer(Backend& backend, std::size_t bytes, std::size_t guard, std::size_t slack = 0);

  std::byte* data() const { return static_cast<std::byte*>(buffer_.data()) + before_; }
  std::size_t bytes() const { return bytes_; }
  // Restores the guards; the second begins `bytes` after the data's start, `bytes` <= bytes().
  void raise_guards(std::size_t bytes);
  void raise_guards() { raise_guards(bytes_); }
  // True if both guards are as they were last written.
  bool whole() const;

 private:
  Backend* backend_ = nullptr;
  DeviceBuffer buffer_;
  std::size_t bytes_ = 0;
  std::size_t guard_ = 0;
  std::size_t before_ = 0;  // the guard and the slack
  std::size_t end_ = 0;     // bytes of data at which the second guard was written
};

// Uploads inputs, poisons outputs, and tells afterwards whether an input was written. Owns the
// device memory; the returned pointers live as long as it does.
class DeviceData {
 public:
  // Puts `guard` bytes before and after each array, for take_damage(): a multiple of 256, so that
  // arrays keep their alignment. With 0, the backend alone judges accesses.
  explicit DeviceData(Backend& backend, std::size_t guard = 0) : backend_(backend), guard_(guard) {}

  // A copy of `values` on the device, or null if it is empty. `values` must outlive this. `offset`
  // bytes of slack come before it, to test the least alignment.
  template <class T>
  const T* input(const std::vector<T>& values, std::size_t offset = 0) {
    if (values.empty()) return nullptr;
    return static_cast<const T*>(add_input(std::as_bytes(std::span(values)), offset));
  }

  // One more copy of an input or a state; it is neither guarded nor checked afterwards.
  template <class T>
  T* copy(const std::vector<T>& values, std::size_t offset = 0) {
    if (values.empty()) return nullptr;
    return static_cast<T*>(add_copy(std::as_bytes(std::span(values)), offset));
  }

  // `count` places of an input: input() makes the first, the others are copies.
  template <class T>
  std::vector<const T*> inputs(const std::vector<T>& values, int count, std::size_t offset = 0) {
    std::vector<const T*> places{input(values, offset)};
    while (std::ssize(places) < count) places.push_back(copy(values, offset));
    return places;
  }

  // `count` places of a state: state() makes the first, and poison_outputs() resets that one alone.
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

  // An output that poison_outputs() fills with `values`, which must outlive this: for kernels that
  // change a part. It is null if `values` is empty, but still gets a number.
  template <class T>
  T* state(const std::vector<T>& values, std::size_t offset = 0) {
    T* const begin = output<T>(values.size(), offset);
    outputs_.back().begins = std::as_bytes(std::span(values));
    return values.empty() ? nullptr : begin;
  }

  // Fills all outputs with 0xff bytes again, and states with their initial values.
  void poison_outputs() const;

  // Brings output number `index` back.
  template <class T>
  std::vector<T> fetch(std::size_t index) const {
    const GuardedBuffer& buffer = outputs_[index].buffer;
    std::vector<T> values(buffer.bytes() / sizeof(T));
    backend_.download(std::as_writable_bytes(std::span(values)), buffer.data());
    return values;
  }

  // Throws Error(verification_failed), which names the first input that differs from its upload.
  void require_inputs_unchanged() const;

  // What a launch wrote beside the outputs ("input number 2", "output number 0, outside of it");
  // nullopt if nothing. Afterwards all but the outputs is restored.
  std::optional<std::string> take_damage();

 private:
  struct Input {
    GuardedBuffer buffer;
    std::span<const std::byte> source;
  };
  struct Output {
    GuardedBuffer buffer;
    std::span<const std::byte> begins = {};  // initial values of a state
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

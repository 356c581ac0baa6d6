// Heap memory of exact size: under AddressSanitizer its red zones catch an overrun, else guard
// bytes on both sides tell of a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace vqgen::host {

class GuardedBlock {
 public:
  // Aligned to 256, filled with poison. std::bad_alloc.
  explicit GuardedBlock(std::size_t bytes);

  std::byte* data() const;
  std::size_t bytes() const { return bytes_; }

  // Every byte 0xff: NaN as fp32, f16 and bf16, and -1 as an index.
  void poison();

  // The first overwritten guard byte as an offset from data(), once: the guards are made whole.
  std::optional<std::ptrdiff_t> take_damage();

 private:
  struct Free {
    void operator()(std::byte* raw) const { std::free(raw); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> raw_;
};

}  // namespace vqgen::host

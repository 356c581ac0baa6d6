// The device memory of the host backend: every allocation known, so that each access can be judged,
// and of exact size, so that each write beside one is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace vqgen::host {

inline std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Heap memory of exact size: under AddressSanitizer its red zones catch an overrun, else guard
// bytes on both sides tell of a write.
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

struct Range {
  std::uint64_t begin;
  std::uint64_t bytes;
  bool operator==(const Range&) const = default;
};

// Const members may be called by several threads at once.
class HostMemory {
 public:
  void* allocate(std::size_t bytes);  // Error(device) when full
  void release(void* pointer) noexcept;

  // Memory of others, which counts as an allocation until it is given back, once for each time that
  // it was lent. May overlap with other such memory. Has no guards.
  void lend(const void* pointer, std::size_t bytes);
  void give_back(const void* pointer, std::size_t bytes) noexcept;

  // The allocation that holds all of [address, address + bytes).
  std::optional<Range> find(std::uint64_t address, std::uint64_t bytes) const;

  // Describes an address that find() does not know: "4 bytes past the end of an allocation of 64".
  std::string locate(std::uint64_t address) const;

  // Describes what stray writes have hit since the last call; nullopt if all guards are intact.
  std::optional<std::string> take_damage();

 private:
  std::map<std::uint64_t, GuardedBlock> blocks_;
  std::vector<Range> lent_;  // few: the arguments of a launch
};

// "3 bytes past the end of" or "8 bytes before", for a guard byte at `offset` of `bytes` bytes.
std::string beside(std::ptrdiff_t offset, std::size_t bytes);

}  // namespace vqgen::host

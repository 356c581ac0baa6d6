#include "runtime/backend/host/guarded_block.h"

#include <cstring>
#include <new>

#include "runtime/backend/host/sanitized.h"

namespace vqgen::host {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuard = kSanitized ? 0 : kAlignment;

// fe ff fe ff: NaN where an overrun reads it, but not what a kernel writes as -1 or as poison.
constexpr std::byte guard_byte(std::size_t index) {
  return index % 2 == 0 ? std::byte{0xfe} : std::byte{0xff};
}

}  // namespace

GuardedBlock::GuardedBlock(std::size_t bytes) : bytes_(bytes) {
  void* raw = nullptr;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&raw, kAlignment, bytes + 2 * kGuard) != 0) {
    throw std::bad_alloc();
  }
  raw_.reset(static_cast<std::byte*>(raw));
  for (std::size_t i = 0; i < kGuard; ++i) {
    raw_.get()[i] = guard_byte(i);
    data()[bytes_ + i] = guard_byte(i);
  }
  poison();
}

std::byte* GuardedBlock::data() const { return raw_.get() + kGuard; }

void GuardedBlock::poison() { std::memset(data(), 0xff, bytes_); }

std::optional<std::ptrdiff_t> GuardedBlock::take_damage() {
  std::optional<std::ptrdiff_t> first;
  for (const std::size_t start : {std::size_t{0}, kGuard + bytes_}) {
    for (std::size_t i = 0; i < kGuard; ++i) {
      std::byte& guard = raw_.get()[start + i];
      if (guard == guard_byte(i)) continue;
      if (!first) first = static_cast<std::ptrdiff_t>(start + i) - std::ptrdiff_t{kGuard};
      guard = guard_byte(i);
    }
  }
  return first;
}

}  // namespace vqgen::host

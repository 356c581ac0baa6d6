#include "runtime/backend/host/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#include "runtime/backend/backend.h"
#include "runtime/backend/host/fiber.h"

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

std::string beside(std::ptrdiff_t offset, std::size_t bytes) {
  if (offset < 0) return fmt::format("{} bytes before", -offset);
  return fmt::format("{} bytes past the end of", offset - static_cast<std::ptrdiff_t>(bytes));
}

void* HostMemory::allocate(std::size_t bytes) {
  try {
    GuardedBlock block(bytes);
    void* const pointer = block.data();
    blocks_.emplace(address_of(pointer), std::move(block));
    return pointer;
  } catch (const std::bad_alloc&) {
    throw device_error("no host memory for {} bytes; free some or take a smaller problem", bytes);
  }
}

void HostMemory::release(void* pointer) noexcept { blocks_.erase(address_of(pointer)); }

void HostMemory::lend(const void* pointer, std::size_t bytes) {
  lent_.push_back({address_of(pointer), bytes});
}

void HostMemory::give_back(const void* pointer, std::size_t bytes) noexcept {
  const auto at = std::find(lent_.begin(), lent_.end(), Range{address_of(pointer), bytes});
  if (at != lent_.end()) lent_.erase(at);
}

std::optional<Range> HostMemory::find(std::uint64_t address, std::uint64_t bytes) const {
  const auto holds = [&](const Range& range) {
    const std::uint64_t offset = address - range.begin;
    return offset <= range.bytes && range.bytes - offset >= bytes;
  };
  const auto next = blocks_.upper_bound(address);
  if (next != blocks_.begin()) {
    const auto& [begin, block] = *std::prev(next);
    const Range range{begin, block.bytes()};
    if (holds(range)) return range;
  }
  const auto lent = std::find_if(lent_.begin(), lent_.end(), holds);
  return lent == lent_.end() ? std::nullopt : std::optional(*lent);
}

std::string HostMemory::locate(std::uint64_t address) const {
  if (address == 0) return "at a null pointer";
  std::uint64_t nearest = 1 << 16;  // farther is nowhere
  std::string place = "outside every allocation of this backend";
  const auto next = blocks_.upper_bound(address);
  if (next != blocks_.begin()) {
    const auto& [begin, block] = *std::prev(next);
    const std::uint64_t offset = address - begin;
    const std::string allocation = fmt::format("an allocation of {} bytes", block.bytes());
    if (offset < block.bytes()) return "across the end of " + allocation;
    if (offset - block.bytes() < nearest) {
      nearest = offset - block.bytes();
      place = beside(static_cast<std::ptrdiff_t>(offset), block.bytes()) + " " + allocation;
    }
  }
  if (next != blocks_.end() && next->first - address < nearest) {
    place = fmt::format("{} bytes before an allocation of {} bytes", next->first - address,
                        next->second.bytes());
  }
  return place;
}

std::optional<std::string> HostMemory::take_damage() {
  std::optional<std::string> first;
  for (auto& [begin, block] : blocks_) {
    const std::optional<std::ptrdiff_t> offset = block.take_damage();
    if (offset && !first) {
      first = fmt::format("{} an allocation of {} bytes", beside(*offset, block.bytes()),
                          block.bytes());
    }
  }
  return first;
}

}  // namespace vqgen::host

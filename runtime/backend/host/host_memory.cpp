#include "runtime/backend/host/host_memory.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "core/error.h"

namespace vqgen::host {

std::string beside(std::ptrdiff_t offset, std::size_t bytes) {
  if (offset < 0) return std::to_string(-offset) + " bytes before";
  return std::to_string(offset - static_cast<std::ptrdiff_t>(bytes)) + " bytes past the end of";
}

void* HostMemory::allocate(std::size_t bytes) {
  try {
    GuardedBlock block(bytes);
    void* const pointer = block.data();
    blocks_.emplace(address_of(pointer), std::move(block));
    return pointer;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::device, "no host memory for " + std::to_string(bytes) +
                                       " bytes; free some or take a smaller problem");
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
    const std::string size = std::to_string(block.bytes()) + " bytes";
    if (offset < block.bytes()) return "across the end of an allocation of " + size;
    if (offset - block.bytes() < nearest) {
      nearest = offset - block.bytes();
      place =
          beside(static_cast<std::ptrdiff_t>(offset), block.bytes()) + " an allocation of " + size;
    }
  }
  if (next != blocks_.end() && next->first - address < nearest) {
    place = std::to_string(next->first - address) + " bytes before an allocation of " +
            std::to_string(next->second.bytes()) + " bytes";
  }
  return place;
}

std::optional<std::string> HostMemory::take_damage() {
  std::optional<std::string> first;
  for (auto& [begin, block] : blocks_) {
    const std::optional<std::ptrdiff_t> offset = block.take_damage();
    if (offset && !first) {
      first = beside(*offset, block.bytes()) + " an allocation of " +
              std::to_string(block.bytes()) + " bytes";
    }
  }
  return first;
}

}  // namespace vqgen::host

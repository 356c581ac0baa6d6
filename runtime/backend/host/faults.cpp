// What a BlockRunner finds wrong, in words.
#include <array>

#include "runtime/backend/host/block_runner.h"

namespace vqgen::host {

using vq::host::Access;
using vq::host::Collective;
using vq::host::Site;

namespace {

std::string access_name(Access access, std::uint64_t bytes) {
  constexpr std::array kNames = {"load_global", "store_global", "load_shared", "store_shared",
                                 "copy_async"};
  return std::string(kNames[static_cast<std::size_t>(access)]) + " of " + std::to_string(bytes) +
         " bytes ";
}

std::string misaligned(std::uint64_t address, std::uint64_t bytes) {
  return "at a misaligned address, " + std::to_string(address % bytes) + " past a multiple of " +
         std::to_string(bytes);
}

// `offset` is modulo 2^64, so that a place before the arena is a large one.
std::string place_in_arena(std::uint64_t offset, std::uint64_t arena_bytes) {
  constexpr std::int64_t kNear = 1 << 20;
  const auto distance = static_cast<std::int64_t>(offset);
  const std::string arena = "an arena of " + std::to_string(arena_bytes) + " bytes";
  if (distance < -kNear || distance > kNear) return "far outside " + arena;
  return "at offset " + std::to_string(distance) + " of " + arena;
}

}  // namespace

std::string BlockRunner::where() const {
  return "kernel " + launch_->shape->name + ", block (" + std::to_string(block[0]) + "," +
         std::to_string(block[1]) + "," + std::to_string(block[2]) + ")";
}

void BlockRunner::note(const std::string& what, Site site, const std::string& remedy) {
  fault_ = where() + ", thread " + std::to_string(thread) + ": " + what + " (" + site.file + ":" +
           std::to_string(site.line) + "); " + remedy;
}

void BlockRunner::abandon() { end_fiber(current().fiber, main_); }

void BlockRunner::check_place(const Wait& first) {
  const Wait& here = waits_[static_cast<std::size_t>(thread)];
  if (same_place(first, here)) return;
  note("divergent " + name_of(here) + " while others wait for it at " + name_of(first) + ": " +
           who_waits_where(states_, waits_),
       here.site, "let all threads concerned reach the same collective");
  abandon();
}

void BlockRunner::fail_stuck() {
  bool all_at_barrier = true;
  for (std::size_t i = 0; i < count_; ++i) {
    all_at_barrier &=
        states_[i] == ThreadState::returned || waits_[i].collective == Collective::kSyncBlock;
  }
  fault_ = where() + (all_at_barrier ? ": threads returned before a barrier: " : ": deadlock: ") +
           who_waits_where(states_, waits_) +
           "; let all threads concerned reach the same collective";
  abandon();
}

void BlockRunner::check_allocation(Access access, std::uint64_t address, std::uint64_t bytes,
                                   Site site) {
  if (address % bytes != 0) {
    note(access_name(access, bytes) + misaligned(address, bytes), site, "align it to its size");
    abandon();
  }
  if (address - reinterpret_cast<std::uintptr_t>(shared) < shared_bytes) {
    note(access_name(access, bytes) + "in shared memory", site, "use the shared access");
    abandon();
  }
  const std::optional<Range> range = launch_->memory->find(address, bytes);
  if (!range) {
    note(access_name(access, bytes) + launch_->memory->locate(address), site,
         "mask the access or size the buffer");
    abandon();
  }
  range_begin = range->begin;
  range_bytes = range->bytes;
}

void BlockRunner::fail_arena(Access access, std::uint64_t address, std::uint64_t bytes, Site site) {
  if (address % bytes != 0) {
    note(access_name(access, bytes) + misaligned(address, bytes), site, "align it to its size");
  } else {
    const auto begin = reinterpret_cast<std::uintptr_t>(shared);
    note(access_name(access, bytes) + place_in_arena(address - begin, shared_bytes), site,
         "mask the access or size the arena");
  }
  abandon();
}

}  // namespace vqgen::host

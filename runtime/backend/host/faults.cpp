// What a BlockRunner finds wrong, in words.
#include <array>

#include "runtime/backend/host/block_runner.h"

namespace vqgen::host {

using vq::host::Access;
using vq::host::Collective;
using vq::host::Site;

namespace {

template <class Number>
std::string block_name(Number x, Number y, Number z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

// What keeps the two accesses of a race in shared memory apart.
std::string remedy_of(const Race& race, int thread) {
  if (race.in_flight && race.earlier.access == Access::kWarpgroupMma) {
    return "let the group wait for its products, then put a sync_block";
  }
  if (race.in_flight && race.thread == thread) return "put a copy_async_wait before it";
  if (race.in_flight) return "let the copy's thread wait for it, then put a sync_block";
  const std::string place = race.earlier.access == Access::kCopyAsync
                                ? "between the copy's copy_async_wait and it"
                                : "between them";
  return "put a sync_block " + place +
         (race.thread / 32 == thread / 32 ? ", or a sync_warp if no other warp shares it" : "");
}

std::string access_name(Access access, std::uint64_t bytes) {
  constexpr std::array kNames = {
      "load_global", "store_global",  "load_shared",          "store_shared",      "copy_async",
      "ldmatrix",    "warpgroup_mma", "load_global_coherent", "atomic_add_global", "load_constant"};
  return std::string(kNames[static_cast<std::size_t>(access)]) + " of " + std::to_string(bytes) +
         " bytes";
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
  return "kernel " + launch_->shape->name + ", block " + block_name(block[0], block[1], block[2]);
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
    note(access_name(access, bytes) + " " + misaligned(address, bytes), site,
         "align it to its size");
    abandon();
  }
  if (address - reinterpret_cast<std::uintptr_t>(shared) < shared_bytes) {
    note(access_name(access, bytes) + " in shared memory", site, "use the shared access");
    abandon();
  }
  if (access != Access::kLoadConstant && !waited_[static_cast<std::size_t>(thread)]) {
    note(access_name(access, bytes) +
             " before after_last_launch(), where the last launch may "
             "still write",
         site, "move it behind, or make it a load_constant if no launch writes there");
    abandon();
  }
  const std::optional<Range> range = launch_->memory->find(address, bytes);
  if (!range) {
    note(access_name(access, bytes) + " " + launch_->memory->locate(address), site,
         "mask the access or size the buffer");
    abandon();
  }
  range_begin = range->begin;
  range_bytes = range->bytes;
}

void BlockRunner::fail_arena(Access access, std::uint64_t address, std::uint64_t bytes, Site site) {
  if (address % bytes != 0) {
    note(access_name(access, bytes) + " " + misaligned(address, bytes), site,
         "align it to its size");
  } else {
    const auto begin = reinterpret_cast<std::uintptr_t>(shared);
    note(access_name(access, bytes) + " " + place_in_arena(address - begin, shared_bytes), site,
         "mask the access or size the arena");
  }
  abandon();
}

void BlockRunner::fail_unwaited() {
  fault_ = where() + ", thread " + std::to_string(thread) +
           ": returns without after_last_launch(); let all threads call it, or use VQ_KERNEL";
  abandon();
}

void BlockRunner::note_race(const Race& race, const Touch& here, bool in_arena) {
  const Dim3& grid = launch_->shape->grid;
  std::string place = "at offset " + std::to_string(race.place) + " of shared memory";
  std::string by = " by thread " + std::to_string(race.thread);
  std::string remedy = remedy_of(race, thread);
  if (!in_arena) {
    const Range range = launch_->memory->find(race.place, 1).value();
    place = "at byte " + std::to_string(race.place - range.begin) + " of an allocation of " +
            std::to_string(range.bytes) + " bytes";
    by += " of block " + block_name(race.block % grid.x, race.block / grid.x % grid.y,
                                    race.block / grid.x / grid.y);
    const auto either = [&](Access access) {
      return race.earlier.access == access || here.access == access;
    };
    remedy =
        "load in another launch than the one that stores: load_global, load_constant and "
        "copy_async read what no thread of theirs writes";
    if (either(Access::kLoadGlobalCoherent)) {
      remedy =
          "let a counter order them: a sync_block and an atomic_add_global after the first, an "
          "atomic_add_global and a sync_block before the second";
    } else if (race.earlier.access == here.access) {
      remedy = "let one thread of a launch store it";
    }
  }
  const Touch& earlier = race.earlier;
  note("race " + place + ": " + access_name(earlier.access, earlier.bytes) + by + " (" +
           earlier.site.file + ":" + std::to_string(earlier.site.line) +
           (race.in_flight ? "), still in flight, then " : "), then ") +
           access_name(here.access, here.bytes),
       here.site, remedy);
}

void BlockRunner::track_access(Access access, std::uint64_t address, std::uint64_t bytes,
                               Site site) {
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(shared);
  const bool in_arena = offset < shared_bytes;
  const Touch here{access, bytes, site};
  const std::optional<Race> race = in_arena ? races_->touch_shared(thread, offset, here)
                                            : races_->touch_global(thread, address, here);
  if (!race) return;
  note_race(*race, here, in_arena);
  abandon();
}

}  // namespace vqgen::host

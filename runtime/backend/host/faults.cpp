// Messages for the faults that a BlockRunner finds.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/backend/host/block_runner.h"

namespace vqgen::host {

namespace {

template <class Number>
std::string block_name(Number x, Number y, Number z) {
  return fmt::format("({},{},{})", x, y, z);
}

bool stores(Access access) {
  return access == Access::kStoreShared || access == Access::kCopyAsync ||
         access == Access::kCopyBulk || access == Access::kAddShared ||
         access == Access::kCountShared;
}

// The remedy for a race in shared memory.
std::string remedy_of(const Race& race, int thread) {
  if (race.of_peer) return "put a sync_cluster between them";
  if (race.in_flight && race.earlier.access == Access::kWarpgroupMma) {
    return "let the group wait for its wgmma, then put a sync_block";
  }
  if (race.earlier.access == Access::kCopyBulk) {
    return "let the thread wait for the copy's barrier, or another thread and then a sync_block";
  }
  if (race.in_flight && race.thread == thread) return "put a copy_async_wait before it";
  if (race.in_flight) return "let the copy's thread wait for it, then put a sync_block";
  const bool copied = race.earlier.access == Access::kCopyAsync;
  const bool one_warp = race.thread / 32 == thread / 32;
  return fmt::format("put a sync_block {}{}",
                     copied ? "between the copy's copy_async_wait and it" : "between them",
                     one_warp ? ", or a sync_warp if no other warp shares it" : "");
}

// The remedy for a race in global memory.
std::string global_remedy_of(Access earlier, Access here) {
  if (earlier == Access::kLoadGlobalCoherent || here == Access::kLoadGlobalCoherent) {
    return "let a counter order them: a sync_block and an atomic_add_global after the first, an "
           "atomic_add_global and a sync_block before the second";
  }
  if (earlier == here) return "let one thread of a launch store it";
  return "load in another launch than the one that stores: load_global, load_constant and "
         "copy_async read what no thread of theirs writes";
}

std::string access_name(Access access, std::uint64_t bytes) {
  constexpr std::array kNames = {
      "load_global", "store_global",  "load_shared",          "store_shared",      "copy_async",
      "ldmatrix",    "warpgroup_mma", "load_global_coherent", "atomic_add_global", "load_constant",
      "copy_bulk",   "count_shared",  "add_shared",           "load_peer"};
  return fmt::format("{} of {} bytes", kNames[static_cast<std::size_t>(access)], bytes);
}

std::string misaligned(std::uint64_t address, std::uint64_t bytes) {
  return fmt::format("at a misaligned address, {} past a multiple of {}", address % bytes, bytes);
}

// `offset` is modulo 2^64, so that a place before the arena is a large one.
std::string place_in_arena(std::uint64_t offset, std::uint64_t arena_bytes) {
  constexpr std::int64_t kNear = 1 << 20;
  const auto distance = static_cast<std::int64_t>(offset);
  const bool near = distance >= -kNear && distance <= kNear;
  return fmt::format("{} an arena of {} bytes",
                     near ? fmt::format("at offset {} of", distance) : "far outside", arena_bytes);
}

bool same_place(const Wait& a, const Wait& b) {
  return a.collective == b.collective && a.site.line == b.site.line &&
         (a.site.file == b.site.file || std::strcmp(a.site.file, b.site.file) == 0);
}

// "0-31, 40": ascending thread numbers, the later ones cut short.
std::string thread_list(std::span<const int> threads) {
  constexpr int kMostRanges = 6;
  std::string out = threads.size() == 1 ? "thread " : "threads ";
  int ranges = 0;
  for (std::size_t i = 0; i < threads.size(); ++ranges) {
    std::size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    if (ranges == kMostRanges) return out + " and others";
    if (ranges > 0) out += ", ";
    out += std::to_string(threads[i]);
    if (last > i) out += "-" + std::to_string(threads[last]);
    i = last + 1;
  }
  return out;
}

// "threads 0-30 wait at shuffle_xor (a.cuh:9), thread 31 has returned". `states` and `waits` by
// thread.
std::string who_waits_where(std::span<const ThreadState> states, std::span<const Wait> waits) {
  std::vector<std::pair<Wait, std::vector<int>>> places;
  std::vector<int> returned;
  for (std::size_t thread = 0; thread < states.size(); ++thread) {
    if (states[thread] == ThreadState::returned) returned.push_back(static_cast<int>(thread));
    if (states[thread] != ThreadState::waiting) continue;
    std::size_t place = 0;
    while (place < places.size() && !same_place(places[place].first, waits[thread])) ++place;
    if (place == places.size()) places.push_back({waits[thread], {}});
    places[place].second.push_back(static_cast<int>(thread));
  }
  std::vector<std::string> parts;
  for (const auto& [wait, threads] : places) {
    parts.push_back(fmt::format("{} {} at {}", thread_list(threads),
                                threads.size() == 1 ? "waits" : "wait", name_of(wait)));
  }
  if (!returned.empty()) {
    parts.push_back(fmt::format("{} {} returned", thread_list(returned),
                                returned.size() == 1 ? "has" : "have"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string name_of(const Wait& wait) {
  constexpr std::array kNames = {
      "sync_block",        "sync_warp",    "shuffle_xor",  "shuffle",         "mma",
      "ldmatrix",          "movmatrix",    "any_of_warp",  "largest_of_warp", "warpgroup_mma",
      "bulk_barrier_wait", "sync_cluster", "leave_cluster"};
  return fmt::format("{} ({}:{})", kNames[static_cast<std::size_t>(wait.collective)],
                     wait.site.file, wait.site.line);
}

std::string BlockRunner::block_text() const {
  return "block " + block_name(block[0], block[1], block[2]);
}

std::string BlockRunner::where() const {
  return fmt::format("kernel {}, {}", launch_->shape->name, block_text());
}

void BlockRunner::note(const std::string& what, Site site, const std::string& remedy) {
  fault_ = fmt::format("{}, thread {}: {} ({}:{}); {}", where(), thread, what, site.file, site.line,
                       remedy);
}

void BlockRunner::abandon() { end_fiber(current().fiber, main_); }

void BlockRunner::check_place(const Wait& first) {
  const Wait& here = waits_[static_cast<std::size_t>(thread)];
  if (same_place(first, here)) return;
  note(fmt::format("divergent {} while others wait for it at {}: {}", name_of(here), name_of(first),
                   who_waits_where(states_, waits_)),
       here.site, "let all threads concerned reach the same collective");
  abandon();
}

void BlockRunner::fail_stuck() {
  bool all_at_barrier = true;
  for (std::size_t i = 0; i < count_; ++i) {
    const Collective at = waits_[i].collective;
    all_at_barrier &= states_[i] == ThreadState::returned || at == Collective::kSyncBlock ||
                      at == Collective::kSyncCluster || at == Collective::kLeaveCluster;
  }
  fault_ = fmt::format("{}: {}: {}; let all threads concerned reach the same collective", where(),
                       all_at_barrier ? "threads returned before a barrier" : "deadlock",
                       who_waits_where(states_, waits_));
  abandon();
}

void BlockRunner::check_allocation(Access access, std::uint64_t address, std::uint64_t bytes,
                                   Site site) {
  const std::optional<Range> range = launch_->memory->find(address, bytes);
  if (address % bytes != 0) {
    note(access_name(access, bytes) + " " + misaligned(address, bytes), site,
         "align it to its size");
  } else if (address - address_of(shared) < shared_bytes) {
    note(access_name(access, bytes) + " in shared memory", site, "use the shared access");
  } else if (access != Access::kLoadConstant && !waited_[static_cast<std::size_t>(thread)]) {
    note(access_name(access, bytes) +
             " before after_last_launch(), where the last launch may still write",
         site, "move it behind, or make it a load_constant if no launch writes there");
  } else if (!range) {
    note(access_name(access, bytes) + " " + launch_->memory->locate(address), site,
         "mask the access or size the buffer");
  } else {
    range_begin = range->begin;
    range_bytes = range->bytes;
    return;
  }
  abandon();
}

void BlockRunner::fail_arena(Access access, std::uint64_t address, std::uint64_t bytes, Site site) {
  if (address % bytes != 0) {
    note(access_name(access, bytes) + " " + misaligned(address, bytes), site,
         "align it to its size");
  } else {
    note(access_name(access, bytes) + " " +
             place_in_arena(address - address_of(shared), shared_bytes),
         site, "mask the access or size the arena");
  }
  abandon();
}

void BlockRunner::fail_unwaited() {
  fault_ = fmt::format(
      "{}, thread {}: returns without after_last_launch(); let all threads call it, or use "
      "VQ_KERNEL",
      where(), thread);
  abandon();
}

void BlockRunner::note_race(const Race& race, const Touch& here, bool in_arena) {
  const Dim3& grid = launch_->shape->grid;
  const Touch& earlier = race.earlier;
  std::string place = fmt::format("at offset {} of shared memory", race.place);
  std::string by = fmt::format("thread {}", race.thread);
  if (race.of_peer || !in_arena) {
    by += " of block " + block_name(race.block % grid.x, race.block / grid.x % grid.y,
                                    race.block / grid.x / grid.y);
  }
  if (!in_arena) {
    const Range range = launch_->memory->find(race.place, 1).value();
    place = fmt::format("at byte {} of an allocation of {} bytes", race.place - range.begin,
                        range.bytes);
  }
  note(fmt::format("race {}: {} by {} ({}:{}){}, then {}", place,
                   access_name(earlier.access, earlier.bytes), by, earlier.site.file,
                   earlier.site.line, race.in_flight ? ", still in flight" : "",
                   access_name(here.access, here.bytes)),
       here.site,
       in_arena ? remedy_of(race, thread) : global_remedy_of(earlier.access, here.access));
}

bool BlockRunner::over_barrier(std::uint64_t address, std::uint64_t bytes) const {
  const auto after = barriers_.lower_bound(reinterpret_cast<const void*>(address + bytes));
  return after != barriers_.begin() &&
         address < address_of(std::prev(after)->first) + sizeof(vq::u64);
}

// Address of these bytes in block `number` of the cluster, which must have begun and not ended, as
// all that wait at a cluster barrier.
const void* BlockRunner::peer_place(const void* in_own, std::uint64_t bytes, int number,
                                    Site site) {
  const std::uint64_t offset = address_of(in_own) - address_of(shared);
  const auto at = static_cast<std::size_t>(number);
  const Touch here{Access::kLoadPeer, bytes, site};
  if (at == number_) {
    if (races_ != nullptr) track_access(Access::kLoadPeer, address_of(in_own), bytes, site);
    return in_own;
  }
  if (at >= peers_.size() || peers_[at]->progress_ != Progress::at_cluster_barrier) {
    note_peer(here, number);
    abandon();
  }
  if (races_ != nullptr) {
    if (const std::optional<Race> race = races_->touch_peer(thread, at, offset, here)) {
      note_race(*race, here, true);
      abandon();
    }
  }
  return peers_[at]->shared + offset;
}

void BlockRunner::note_peer(const Touch& here, int number) {
  const std::string what = access_name(here.access, here.bytes);
  const auto at = static_cast<std::size_t>(number);
  if (at >= peers_.size()) {
    note(fmt::format("{} from block {} of a cluster of {}", what, number, peers_.size()), here.site,
         "load from blocks of the cluster");
  } else if (peers_[at]->progress_ == Progress::ended) {
    note(fmt::format("{} from {}, which has ended", what, peers_[at]->block_text()), here.site,
         "let all blocks wait at leave_cluster behind the loads");
  } else {
    note(fmt::format("{} from {}, which may not have begun", what, peers_[at]->block_text()),
         here.site, "put a sync_cluster before the loads");
  }
}

void BlockRunner::track_access(Access access, std::uint64_t address, std::uint64_t bytes,
                               Site site) {
  const std::uint64_t offset = address - address_of(shared);
  const bool in_arena = offset < shared_bytes;
  const Touch here{access, bytes, site};
  if (stores(access) && over_barrier(address, bytes)) {
    note(fmt::format("{} over a barrier of bulk copies", access_name(access, bytes)), site,
         "keep its memory for it until the block ends");
    abandon();
  }
  const std::optional<Race> race = in_arena ? races_->touch_shared(thread, offset, here)
                                            : races_->touch_global(thread, address, here);
  if (!race) return;
  note_race(*race, here, in_arena);
  abandon();
}

}  // namespace vqgen::host

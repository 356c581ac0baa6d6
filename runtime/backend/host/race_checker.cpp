#include "runtime/backend/host/race_checker.h"

#include <algorithm>

namespace vqgen::host {

namespace {

// A record of global memory: 24 bits of touch over 40 bits of thread in the grid plus one, more of
// each than a text has accesses and a CPU can run.
constexpr unsigned kActorBits = 40;
constexpr std::uint64_t kActor = (std::uint64_t{1} << kActorBits) - 1;
constexpr std::uint64_t kThreadsOfBlock = 1024;

bool writes(Access access) {
  return access == Access::kStoreShared || access == Access::kStoreGlobal ||
         access == Access::kCopyAsync || access == Access::kCopyBulk;
}

bool same(const Touch& a, const Touch& b) {
  return a.site.file == b.site.file && a.site.line == b.site.line && a.access == b.access &&
         a.bytes == b.bytes;
}

}  // namespace

void RaceChecker::Shadow::clear() {
  pages_.clear();
  page_ = nullptr;
}

void RaceChecker::Shadow::look_up(std::uint64_t address) {
  const std::uint64_t number = address / kPageBytes;
  if (page_ != nullptr && number == number_) return;
  number_ = number;
  const auto found = pages_.find(number);
  page_ = found == pages_.end() ? nullptr : &found->second;
}

std::uint64_t RaceChecker::Shadow::get(std::uint64_t address) {
  look_up(address);
  return page_ == nullptr ? 0 : (*page_)[address % kPageBytes];
}

void RaceChecker::Shadow::set(std::uint64_t address, std::uint64_t record) {
  look_up(address);
  if (page_ == nullptr) page_ = &pages_[number_];
  (*page_)[address % kPageBytes] = record;
}

void RaceChecker::begin_launch(std::uint64_t arena_bytes, std::size_t cluster_blocks) {
  blocks_.assign(cluster_blocks, {});
  for (Block& each : blocks_) each.cells.resize((arena_bytes + kGranule - 1) / kGranule);
  for (Shadow* each : {&stores_, &store_clocks_, &loads_, &coherent_loads_, &coherent_clocks_}) {
    each->clear();
  }
  counters_.clear();
  touches_.clear();  // the sites are strings of a text that may be unloaded by now
}

void RaceChecker::begin_block(std::size_t number, std::uint64_t index) {
  give_turn(number);
  block_->index = index;
  block_->added.clear();
  block_->acquired.clear();
  block_->peer_loads.clear();
  block_barrier();
  block_->begin = cluster_barrier_ = clock_;
}

void RaceChecker::give_turn(std::size_t number) { block_ = &blocks_[number]; }

void RaceChecker::block_barrier() { block_->barrier = ++clock_; }

void RaceChecker::cluster_barrier() {
  cluster_barrier_ = ++clock_;
  for (Block& each : blocks_) {
    each.barrier = clock_;
    each.peer_loads.clear();
  }
}

void RaceChecker::warp_barrier(unsigned warp) { block_->warp_barrier[warp] = ++clock_; }

bool RaceChecker::ordered(const Stamp& earlier, int thread) const {
  return earlier.thread == thread || earlier.clock < block_->barrier ||
         (earlier.thread / 32 == thread / 32 &&
          earlier.clock < block_->warp_barrier[static_cast<std::size_t>(thread / 32)]);
}

std::uint32_t RaceChecker::number_of(const Touch& touch) {
  const auto line = static_cast<std::size_t>(touch.site.line);
  std::uint32_t& recent =
      recent_touches_[(line * 8 + static_cast<std::size_t>(touch.access) + touch.bytes * 61) %
                      recent_touches_.size()];
  if (recent < touches_.size() && same(touches_[recent], touch)) return recent;
  recent = 0;
  while (recent < touches_.size() && !same(touches_[recent], touch)) ++recent;
  if (recent == touches_.size()) touches_.push_back(touch);
  return recent;
}

void RaceChecker::note(Pair& pair, const Stamp& stamp) const {
  auto& [first, second] = pair;
  if (ordered(first, stamp.thread)) {
    first = stamp;
  } else if (ordered(second, stamp.thread) || second.thread / 32 == first.thread / 32) {
    second = stamp;
  }
}

// An access of the pair that nothing orders before the thread's present action; null if there is
// none.
const RaceChecker::Stamp* RaceChecker::unordered(const Pair& pair, int thread) const {
  for (const Stamp& each : pair) {
    if (!ordered_within_block(each, thread)) return &each;
  }
  return nullptr;
}

Race RaceChecker::race_with(const Stamp& earlier, std::uint64_t offset, bool in_flight) const {
  return {touches_[earlier.touch], block_->index, earlier.thread, offset, false, in_flight};
}
Race RaceChecker::race_with(const Stamp& earlier, const Block& block, std::uint64_t offset,
                            bool in_flight) const {
  return {touches_[earlier.touch], block.index, earlier.thread, offset, true, in_flight};
}

std::optional<Race> RaceChecker::touch_shared(int thread, std::uint64_t offset,
                                              const Touch& touch) {
  const Stamp now{clock_, number_of(touch), static_cast<std::uint16_t>(thread)};
  const std::uint64_t end = (offset + touch.bytes) / kGranule;
  const bool counts = touch.access == Access::kCountShared;
  for (std::uint64_t i = offset / kGranule; i < end; ++i) {
    Cell& cell = block_->cells[i];
    const bool in_flight = cell.in_flight && cell.write.clock >= block_->begin;
    if (in_flight || !write_ordered(cell, thread)) {
      return race_with(cell.write, i * kGranule, in_flight);
    }
    if (counts) continue;
    const bool adds = touch.access == Access::kAddShared;
    if (const Stamp* add = adds ? nullptr : unordered(cell.adds, thread)) {
      return race_with(*add, i * kGranule, false);
    }
    if (!adds && !writes(touch.access)) {
      note(cell.reads, now);
      continue;
    }
    if (cell.readers > 0 && cell.reader.clock >= block_->begin) {
      return race_with(cell.reader, i * kGranule, true);
    }
    if (const Stamp* read = unordered(cell.reads, thread)) {
      return race_with(*read, i * kGranule, false);
    }
    if (const auto load = block_->peer_loads.find(i); load != block_->peer_loads.end()) {
      const auto& [stamp, block] = load->second;
      return Race{touches_[stamp.touch], block, stamp.thread, i * kGranule, true, false};
    }
    if (adds) {
      note(cell.adds, now);
      continue;
    }
    cell.write = now;
    cell.in_flight = touch.access == Access::kCopyAsync || touch.access == Access::kCopyBulk;
    cell.barrier = kNone;
  }
  if (counts) add(thread, offset);
  return std::nullopt;
}

std::optional<Race> RaceChecker::touch_peer(int thread, std::size_t number, std::uint64_t offset,
                                            const Touch& touch) {
  Block& owner = blocks_[number];
  const Stamp now{clock_, number_of(touch), static_cast<std::uint16_t>(thread)};
  for (std::uint64_t i = offset / kGranule; i < (offset + touch.bytes) / kGranule; ++i) {
    const Cell& cell = owner.cells[i];
    const bool in_flight = cell.in_flight && cell.write.clock >= owner.begin;
    if (in_flight || cell.write.clock >= cluster_barrier_) {
      return race_with(cell.write, owner, i * kGranule, in_flight);
    }
    for (const Stamp& add : cell.adds) {
      if (add.clock >= cluster_barrier_) return race_with(add, owner, i * kGranule, false);
    }
    owner.peer_loads[i] = {now, block_->index};
  }
  return std::nullopt;
}

void RaceChecker::land(int thread, std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t i = offset / kGranule; i < (offset + bytes) / kGranule; ++i) {
    block_->cells[i].write.clock = clock_;
    block_->cells[i].write.thread = static_cast<std::uint16_t>(thread);
    block_->cells[i].in_flight = false;
  }
}

// The clock advances, so that who waited for an earlier phase has not waited for this one.
void RaceChecker::land_bulk(std::uint64_t barrier, std::uint64_t offset, std::uint64_t bytes) {
  ++clock_;
  for (std::uint64_t i = offset / kGranule; i < (offset + bytes) / kGranule; ++i) {
    block_->cells[i].write.clock = clock_;
    block_->cells[i].barrier = barrier;
    block_->cells[i].in_flight = false;
  }
}

void RaceChecker::release(int thread, std::uint64_t barrier) {
  release_to(counters_[barrier], thread);
}
void RaceChecker::acquire(int thread, std::uint64_t barrier) {
  const auto found = counters_.find(barrier);
  if (found != counters_.end() && found->second.contains(block_->index)) {
    block_->added.emplace_back(&found->second,
                               Stamp{++clock_, 0, static_cast<std::uint16_t>(thread)});
  }
  block_->acquired[barrier][static_cast<std::size_t>(thread)] = clock_;
}

bool RaceChecker::write_ordered(const Cell& cell, int thread) const {
  if (cell.barrier == kNone) return ordered_within_block(cell.write, thread);
  if (cell.write.clock < block_->barrier) return true;
  const auto waits = block_->acquired.find(cell.barrier);
  return waits != block_->acquired.end() &&
         waits->second[static_cast<std::size_t>(thread)] >= cell.write.clock;
}

void RaceChecker::begin_read(int thread, std::uint64_t offset, const Touch& touch) {
  for (std::uint64_t i = offset / kGranule; i < (offset + touch.bytes) / kGranule; ++i) {
    Cell& cell = block_->cells[i];
    if (cell.reader.clock < block_->begin) cell.readers = 0;
    ++cell.readers;
    cell.reader = {clock_, number_of(touch), static_cast<std::uint16_t>(thread)};
  }
}

void RaceChecker::end_read(std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t i = offset / kGranule; i < (offset + bytes) / kGranule; ++i) {
    --block_->cells[i].readers;
  }
}

Race RaceChecker::race_with(std::uint64_t record, std::uint64_t address) const {
  const std::uint64_t actor = (record & kActor) - 1;
  return {touches_[record >> kActorBits],
          actor / kThreadsOfBlock,
          static_cast<int>(actor % kThreadsOfBlock),
          address,
          false,
          false};
}

RaceChecker::Deed RaceChecker::deed_of(std::uint64_t record, std::uint64_t clock) const {
  const std::uint64_t actor = (record & kActor) - 1;
  return {actor / kThreadsOfBlock, {clock, 0, static_cast<std::uint16_t>(actor % kThreadsOfBlock)}};
}

// The clock advances so that the thread's later actions do not count as before the addition.
RaceChecker::Stamp RaceChecker::release_to(Counter& counter, int thread) {
  const Stamp stamp{++clock_, 0, static_cast<std::uint16_t>(thread)};
  counter[block_->index].push_back(
      {stamp, block_->barrier, block_->warp_barrier[static_cast<std::size_t>(thread / 32)]});
  return stamp;
}
void RaceChecker::add(int thread, std::uint64_t address) {
  Counter& counter = counters_[address];
  block_->added.emplace_back(&counter, release_to(counter, thread));
}

// True if the stamped access is ordered before the addition, of the same block.
bool RaceChecker::released(const Stamp& stamp, const Addition& addition) {
  return (stamp.thread == addition.stamp.thread && stamp.clock < addition.stamp.clock) ||
         stamp.clock < addition.block_barrier ||
         (stamp.thread / 32 == addition.stamp.thread / 32 && stamp.clock < addition.warp_barrier);
}

// Orders by barriers, or by a counter to which one thread added before the other, newest first.
bool RaceChecker::ordered_within_block(const Stamp& earlier, int thread) const {
  if (ordered(earlier, thread)) return true;
  for (auto each = block_->added.rbegin(); each != block_->added.rend(); ++each) {
    const auto& [counter, acquired] = *each;
    if (acquired.clock <= earlier.clock) return false;
    if (!ordered(acquired, thread)) continue;
    for (const Addition& addition : counter->at(block_->index)) {
      if (addition.stamp.clock < acquired.clock && released(earlier, addition)) return true;
    }
  }
  return false;
}

bool RaceChecker::ordered_by_counters(const Deed& earlier, int thread) const {
  if (earlier.block == block_->index) return ordered(earlier.stamp, thread);
  for (const auto& [counter, acquired] : block_->added) {
    if (!ordered(acquired, thread)) continue;
    const auto others = counter->find(earlier.block);
    if (others == counter->end()) continue;
    if (std::any_of(others->second.begin(), others->second.end(),
                    [&, before = acquired.clock](const Addition& addition) {
                      return addition.stamp.clock < before && released(earlier.stamp, addition);
                    })) {
      return true;
    }
  }
  return false;
}

std::optional<Race> RaceChecker::touch_global(int thread, std::uint64_t address,
                                              const Touch& touch) {
  if (touch.access == Access::kAtomicAddGlobal) {
    add(thread, address);
    return std::nullopt;
  }
  const std::uint64_t actor =
      block_->index * kThreadsOfBlock + static_cast<std::uint64_t>(thread) + 1;
  const std::uint64_t record = std::uint64_t{number_of(touch)} << kActorBits | actor;
  const bool store = touch.access == Access::kStoreGlobal;
  const bool coherent = touch.access == Access::kLoadGlobalCoherent;
  const auto unordered = [&](std::uint64_t other, Shadow& clocks, std::uint64_t at) {
    return other != 0 && !ordered_by_counters(deed_of(other, clocks.get(at)), thread);
  };
  for (std::uint64_t at = address; at < address + touch.bytes; ++at) {
    const std::uint64_t stored = stores_.get(at);
    if (coherent) {
      if (unordered(stored, store_clocks_, at)) return race_with(stored, at);
      coherent_loads_.set(at, record);
      coherent_clocks_.set(at, clock_);
      continue;
    }
    if (stored != 0 && !(store && (stored & kActor) == actor)) return race_with(stored, at);
    if (!store) {
      loads_.set(at, record);
      continue;
    }
    if (const std::uint64_t loaded = loads_.get(at); loaded != 0) return race_with(loaded, at);
    const std::uint64_t read = coherent_loads_.get(at);
    if (unordered(read, coherent_clocks_, at)) return race_with(read, at);
    stores_.set(at, record);
    store_clocks_.set(at, clock_);
  }
  return std::nullopt;
}

}  // namespace vqgen::host

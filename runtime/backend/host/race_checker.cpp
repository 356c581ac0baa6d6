#include "runtime/backend/host/race_checker.h"

namespace vqgen::host {

using vq::host::Access;

namespace {

// A record of global memory: 24 bits of touch over 40 bits of thread in the grid plus one, more of
// each than a text has accesses and a CPU can run.
constexpr unsigned kActorBits = 40;
constexpr std::uint64_t kActor = (std::uint64_t{1} << kActorBits) - 1;
constexpr std::uint64_t kThreadsOfBlock = 1024;

bool writes(Access access) {
  return access == Access::kStoreShared || access == Access::kStoreGlobal ||
         access == Access::kCopyAsync;
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
  return page_ == nullptr ? 0 : (*page_)[address % kPageBytes / kGranule];
}

void RaceChecker::Shadow::set(std::uint64_t address, std::uint64_t record) {
  look_up(address);
  if (page_ == nullptr) page_ = &pages_[number_];
  (*page_)[address % kPageBytes / kGranule] = record;
}

void RaceChecker::begin_launch(std::uint64_t arena_bytes) {
  cells_.assign((arena_bytes + kGranule - 1) / kGranule, {});
  stores_.clear();
  loads_.clear();
  touches_.clear();  // the sites are strings of a text that may be unloaded by now
}

void RaceChecker::begin_block(std::uint64_t index) {
  block_index_ = index;
  block_barrier();
  block_begin_ = clock_;
}

void RaceChecker::block_barrier() { block_barrier_ = ++clock_; }

void RaceChecker::warp_barrier(unsigned warp) { warp_barrier_[warp] = ++clock_; }

bool RaceChecker::ordered(const Stamp& earlier, int thread) const {
  return earlier.thread == thread || earlier.clock < block_barrier_ ||
         (earlier.thread / 32 == thread / 32 &&
          earlier.clock < warp_barrier_[static_cast<std::size_t>(thread / 32)]);
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

void RaceChecker::note_read(Cell& cell, const Stamp& read) const {
  auto& [first, second] = cell.reads;
  if (ordered(first, read.thread)) {
    first = read;
  } else if (ordered(second, read.thread) || second.thread / 32 == first.thread / 32) {
    second = read;
  }
}

Race RaceChecker::race_with(const Stamp& earlier, std::uint64_t offset, bool in_flight) const {
  return {touches_[earlier.touch], block_index_, earlier.thread, offset, in_flight};
}

std::optional<Race> RaceChecker::touch_shared(int thread, std::uint64_t offset,
                                              const Touch& touch) {
  const Stamp now{clock_, number_of(touch), static_cast<std::uint16_t>(thread)};
  const std::uint64_t end = (offset + touch.bytes) / kGranule;
  for (std::uint64_t i = offset / kGranule; i < end; ++i) {
    Cell& cell = cells_[i];
    const bool in_flight = cell.in_flight && cell.write.clock >= block_begin_;
    if (in_flight || !ordered(cell.write, thread)) {
      return race_with(cell.write, i * kGranule, in_flight);
    }
    if (!writes(touch.access)) {
      note_read(cell, now);
      continue;
    }
    if (cell.readers > 0 && cell.reader.clock >= block_begin_) {
      return race_with(cell.reader, i * kGranule, true);
    }
    for (const Stamp& read : cell.reads) {
      if (!ordered(read, thread)) return race_with(read, i * kGranule, false);
    }
    cell.write = now;
    cell.in_flight = touch.access == Access::kCopyAsync;
  }
  return std::nullopt;
}

void RaceChecker::land(int thread, std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t i = offset / kGranule; i < (offset + bytes) / kGranule; ++i) {
    cells_[i].write.clock = clock_;
    cells_[i].write.thread = static_cast<std::uint16_t>(thread);
    cells_[i].in_flight = false;
  }
}

void RaceChecker::begin_read(int thread, std::uint64_t offset, const Touch& touch) {
  for (std::uint64_t i = offset / kGranule; i < (offset + touch.bytes) / kGranule; ++i) {
    Cell& cell = cells_[i];
    if (cell.reader.clock < block_begin_) cell.readers = 0;
    ++cell.readers;
    cell.reader = {clock_, number_of(touch), static_cast<std::uint16_t>(thread)};
  }
}

void RaceChecker::end_read(std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t i = offset / kGranule; i < (offset + bytes) / kGranule; ++i) {
    --cells_[i].readers;
  }
}

Race RaceChecker::race_with(std::uint64_t record, std::uint64_t address) const {
  const std::uint64_t actor = (record & kActor) - 1;
  return {touches_[record >> kActorBits], actor / kThreadsOfBlock,
          static_cast<int>(actor % kThreadsOfBlock), address, false};
}

std::optional<Race> RaceChecker::touch_global(int thread, std::uint64_t address,
                                              const Touch& touch) {
  if (touch.access == Access::kLoadGlobalCoherent || touch.access == Access::kAtomicAddGlobal) {
    return std::nullopt;
  }
  const std::uint64_t actor =
      block_index_ * kThreadsOfBlock + static_cast<std::uint64_t>(thread) + 1;
  const std::uint64_t record = std::uint64_t{number_of(touch)} << kActorBits | actor;
  const bool store = touch.access == Access::kStoreGlobal;
  for (std::uint64_t at = address; at < address + touch.bytes; at += kGranule) {
    const std::uint64_t stored = stores_.get(at);
    if (stored != 0 && !(store && (stored & kActor) == actor)) return race_with(stored, at);
    const std::uint64_t loaded = store ? loads_.get(at) : 0;
    if (loaded != 0) return race_with(loaded, at);
    (store ? stores_ : loads_).set(at, record);
  }
  return std::nullopt;
}

}  // namespace vqgen::host

// Finds races: two accesses of one place by different threads, one of them a write, that nothing
// orders, whichever came first in this run. Every barrier advances one clock, and an access is
// stamped with it.
//
// Shared memory: an access is ordered before a later one by the same thread, or if its stamp is
// older than the block's last barrier, or, within a warp, than the warp's last barrier; shuffles
// order nothing. An asynchronous copy writes, and wgmma reads, until its thread has waited. A bulk
// copy writes until its barrier's phase is complete, and is ordered before what a thread does that
// has waited for that; so is what a thread did before it arrived there. Counters in shared memory
// order threads of a block as those in global memory order blocks. Additions (add_shared) are
// ordered among themselves, and count as stores for loads and stores.
//
// Global memory: one thread of the launch stores a place, and none reads it through the read-only
// path. Between blocks counters order stores and coherent loads: what a thread did before its
// addition (or its block before a barrier before that) precedes what a thread does after a later
// addition to the same counter (or its block after a barrier). Only the last coherent load of a
// place is remembered; counters themselves are not judged.
//
// Clusters: each block has its shared memory. A cluster barrier is one of each of its blocks, and
// it alone orders their accesses to each other's shared memory; in global memory it orders nothing.
//
// The clock suits fibers: what ran before a barrier's last arrival was called before it.
#pragma once

#include <vq/host_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vqgen::host {

using vq::host::Access;
using vq::host::Collective;
using vq::host::Context;
using vq::host::Exchange;
using vq::host::Site;

// An access in the text.
struct Touch {
  Access access;
  std::uint64_t bytes;
  Site site;
};

// The access that another one, just made, is in a race with.
struct Race {
  Touch earlier;
  std::uint64_t block;  // of the grid, x fastest
  int thread;
  std::uint64_t place;  // the first common byte: an offset in shared memory, or an address
  bool of_peer;         // one of the blocks loads from the other's shared memory
  bool in_flight;       // `earlier` is a copy or a product that its thread has not waited for
};

// Checks the blocks of one cluster at a time, in turn, on one CPU thread.
class RaceChecker {
 public:
  void begin_launch(std::uint64_t arena_bytes, std::size_t cluster_blocks);
  // Block number `number` of the cluster, which is the grid's `index`, and now has its turn.
  void begin_block(std::size_t number, std::uint64_t index);
  void give_turn(std::size_t number);
  void block_barrier();
  void cluster_barrier();
  void warp_barrier(unsigned warp);

  // `thread` touches [offset, offset + bytes) of shared memory, or of global memory by address;
  // aligned to bytes, of shared memory a multiple of kGranule. The first race found, or none: then
  // it is noted.
  std::optional<Race> touch_shared(int thread, std::uint64_t offset, const Touch& touch);
  std::optional<Race> touch_global(int thread, std::uint64_t address, const Touch& touch);
  // touch() for a load from the shared memory of another block of the cluster, number `number`.
  std::optional<Race> touch_peer(int thread, std::size_t number, std::uint64_t offset,
                                 const Touch& touch);

  // The thread that issued the copy to [offset, offset + bytes) has waited for it.
  void land(int thread, std::uint64_t offset, std::uint64_t bytes);

  // A bulk copy whose barrier completes a phase; a thread that has arrived, or has waited for a
  // phase.
  void land_bulk(std::uint64_t barrier, std::uint64_t offset, std::uint64_t bytes);
  void release(int thread, std::uint64_t barrier);
  void acquire(int thread, std::uint64_t barrier);

  // Begins an asynchronous read of [offset, offset + bytes) of shared memory, which lasts until the
  // thread has waited for it: a write in between is a race despite any barriers.
  void begin_read(int thread, std::uint64_t offset, const Touch& touch);
  void end_read(std::uint64_t offset, std::uint64_t bytes);

 private:
  static constexpr std::uint64_t kGranule = 2;  // the smallest access to shared memory
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  struct Stamp {
    std::uint64_t clock = 0;
    std::uint32_t touch = 0;  // in touches_
    std::uint16_t thread = 0;
  };
  // Two of the reads since the last write suffice: one is kept only while concurrent with the
  // other, and of three, two of different warps, which no later write can both follow.
  using Pair = std::array<Stamp, 2>;
  // Additions are no race with each other, so they are kept as reads are.
  struct Cell {
    Stamp write;
    bool in_flight = false;
    std::uint64_t barrier = kNone;  // that the write, a bulk copy, has completed a phase of
    Pair reads;
    Pair adds;
    Stamp reader;               // the last to begin,
    std::uint16_t readers = 0;  // of reads that go on
  };

  // A record a byte of global memory, 0 where there is none; a page of them when it gets one.
  class Shadow {
   public:
    void clear();
    std::uint64_t get(std::uint64_t address);
    void set(std::uint64_t address, std::uint64_t record);

   private:
    static constexpr std::uint64_t kPageBytes = 4096;
    using Page = std::array<std::uint64_t, kPageBytes>;
    void look_up(std::uint64_t address);

    std::unordered_map<std::uint64_t, Page> pages_;
    std::uint64_t number_ = 0;  // of the page looked up last
    Page* page_ = nullptr;      // null where there is none
  };

  // An access to global memory without its touch: where and when.
  struct Deed {
    std::uint64_t block = 0;
    Stamp stamp;
  };
  // An addition to a counter: what is ordered before it of its block, by the barriers so far.
  struct Addition {
    Stamp stamp;
    std::uint64_t block_barrier = 0;
    std::uint64_t warp_barrier = 0;
  };
  // Additions of each block.
  using Counter = std::unordered_map<std::uint64_t, std::vector<Addition>>;

  void add(int thread, std::uint64_t address);
  Stamp release_to(Counter& counter, int thread);
  bool ordered_by_counters(const Deed& earlier, int thread) const;
  static bool released(const Stamp& stamp, const Addition& addition);
  bool ordered_within_block(const Stamp& earlier, int thread) const;
  bool write_ordered(const Cell& cell, int thread) const;
  Deed deed_of(std::uint64_t record, std::uint64_t clock) const;
  std::uint32_t number_of(const Touch& touch);
  bool ordered(const Stamp& earlier, int thread) const;
  void note(Pair& pair, const Stamp& stamp) const;
  const Stamp* unordered(const Pair& pair, int thread) const;
  Race race_with(const Stamp& earlier, std::uint64_t offset, bool in_flight) const;
  Race race_with(std::uint64_t record, std::uint64_t address) const;

  // A block of the cluster.
  struct Block {
    std::uint64_t index = 0;    // within the grid
    std::uint64_t begin = 0;    // the clock when it began
    std::uint64_t barrier = 0;  // and at its last barrier
    std::array<std::uint64_t, 32> warp_barrier{};
    std::vector<Cell> cells;  // a granule of the arena
    // Counters that it added to, and when.
    std::vector<std::pair<const Counter*, Stamp>> added;
    // When each thread last waited for each barrier of bulk copies.
    std::unordered_map<std::uint64_t, std::array<std::uint64_t, 1024>> acquired;
    // For each granule: a load by another block since the last cluster barrier, and that block.
    std::unordered_map<std::uint64_t, std::pair<Stamp, std::uint64_t>> peer_loads;
  };

  Race race_with(const Stamp& earlier, const Block& block, std::uint64_t offset,
                 bool in_flight) const;

  std::uint64_t clock_ = 0;
  std::uint64_t cluster_barrier_ = 0;  // the clock at the cluster's last one, or when it began
  std::vector<Block> blocks_;
  Block* block_ = nullptr;  // whose turn it is
  Shadow stores_;
  Shadow store_clocks_;
  Shadow loads_;
  Shadow coherent_loads_;
  Shadow coherent_clocks_;
  std::unordered_map<std::uint64_t, Counter> counters_;  // by address
  std::vector<Touch> touches_;
  std::array<std::uint32_t, 1024> recent_touches_{};  // hashed: where to look first
};

}  // namespace vqgen::host

// Finds two accesses of one place by different threads, one of them a write, that nothing orders:
// whichever came first in this run, on a GPU the other may. Every barrier advances one clock, and
// an access is stamped with it. Of two accesses to shared memory the earlier is ordered before the
// later where the same thread makes both, where its stamp is older than the last barrier of the
// block, or where both threads are of one warp and it is older than that warp's last barrier.
// Shuffles order nothing. An asynchronous copy writes from its issue until its thread has waited
// for it, and a product of a warp group reads until then. A bulk copy writes until its barrier's
// phase is complete, and is ordered before what a thread does that has waited for that itself; so is
// what a thread did before it arrived at the barrier.
// Counters in shared memory order the threads of a block as those in global memory do blocks.
// Additions to a word (add_shared) are ordered among themselves, and with loads and stores as
// stores are.
//
// In global memory a place has one thread of the launch that stores it, and is not read through the
// read-only path by any. Between blocks, counters order stores and coherent loads: what a thread
// did before it added to one, or its block before a barrier before that, is ordered before what a
// thread does after it, or its block after a barrier, added to the same one later. Of the coherent
// loads of a place the last is remembered. The counters themselves are not judged.
//
// Of the blocks of a cluster each has its shared memory. A barrier of the cluster is one of each of
// its blocks, and it alone orders what they do to one another's: a load of a peer's behind it what
// the peer stored before it, and what the peer stores behind it such a load before it. In global
// memory it orders nothing.
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

// Of the blocks of one cluster at a time, by turns, on one CPU thread.
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
  // The same of a load from the shared memory of block `number` of the cluster, another one.
  std::optional<Race> touch_peer(int thread, std::size_t number, std::uint64_t offset,
                                 const Touch& touch);

  // The thread that issued the copy to [offset, offset + bytes) has waited for it.
  void land(int thread, std::uint64_t offset, std::uint64_t bytes);

  // The same of a bulk copy, whose barrier completes a phase; and a thread has arrived, or has
  // waited for a phase.
  void land_bulk(std::uint64_t barrier, std::uint64_t offset, std::uint64_t bytes);
  void release(int thread, std::uint64_t barrier);
  void acquire(int thread, std::uint64_t barrier);

  // Something that the thread began goes on reading [offset, offset + bytes) of shared memory until
  // the thread has waited for it: a write in between is a race, whatever barriers stand there.
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
  // Of the reads since the last write, two are enough: one is kept only while it is concurrent with
  // the other, and where three are, two of different warps, which no later write can both follow.
  using Pair = std::array<Stamp, 2>;
  // Additions are no race with each other, so they are kept as reads are.
  struct Cell {
    Stamp write;
    bool in_flight = false;
    std::uint64_t barrier = kNone;  // that the write, a bulk copy, has completed a phase of
    Pair reads;
    Pair adds;
    Stamp reader;               // the last to begin,
    std::uint16_t readers = 0;  // of so many that go on
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

  // What a thread has of global memory: where and when, the touch apart.
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
  // Those of each block.
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
    std::uint64_t index = 0;    // of the grid
    std::uint64_t begin = 0;    // the clock when it began
    std::uint64_t barrier = 0;  // and at its last barrier
    std::array<std::uint64_t, 32> warp_barrier{};
    std::vector<Cell> cells;  // a granule of the arena
    // What it added to, and when.
    std::vector<std::pair<const Counter*, Stamp>> added;
    // When each thread last waited for each barrier of bulk copies.
    std::unordered_map<std::uint64_t, std::array<std::uint64_t, 1024>> acquired;
    // Of each granule a load by another block since the cluster's last barrier, and that block.
    std::unordered_map<std::uint64_t, std::pair<Stamp, std::uint64_t>> peer_loads;
  };

  Race race_with(const Stamp& earlier, const Block& of, std::uint64_t offset, bool in_flight) const;

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
  std::array<std::uint32_t, 1024> recent_touches_{};  // by a hash, where to look first
};

}  // namespace vqgen::host

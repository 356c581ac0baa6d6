// Runs the threads of one block as fibers, one at a time: each runs until it waits in a collective
// or returns. Bit masks of ready warps and ready lanes make switching free of allocation and
// search. Orders forward and reverse exhaust a warp before the next, so that a missing barrier
// shows. At a cluster barrier the block pauses until cluster_runner.h resumes it.
#pragma once

#include <vq/host_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/plan/kernel_source.h"
#include "runtime/backend/host/fiber.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/backend/host/host_memory.h"
#include "runtime/backend/host/race_checker.h"

namespace vqgen::host {

inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kGroupWarps = 4;  // in a warpgroup
inline constexpr unsigned kMostThreads = 1024;

enum class ThreadState : unsigned char { ready, waiting, returned };

// Position of a waiting thread.
struct Wait {
  Collective collective;
  Site site;
};

// "sync_block (attention.cuh:40)"
std::string name_of(const Wait& wait);

// One entry with its arguments, ready to run. Outlives the runs.
struct Launch {
  const KernelEntry* shape;
  const void* args;
  const HostMemory* memory;
};

// State of a block: not begun, at a cluster barrier, ended, or failed: running or given up for a
// fault.
enum class Progress : unsigned char { none, at_cluster_barrier, ended, failed };

// A worker has one for each block of a cluster, and reuses it from block to block and launch to
// launch.
class BlockRunner : private Context {
 public:
  // `races`: null, or what the blocks of a cluster share and outlives them.
  BlockRunner(LaneOrder order, std::uint64_t seed, RaceChecker* races);
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // Readies arena and stacks; `entry` is this worker's own copy, `peers` are the blocks of the
  // cluster, of which this is number `number`. std::bad_alloc.
  void begin(const Launch& launch, const vq::host::Entry& entry,
             std::span<const std::unique_ptr<BlockRunner>> peers, unsigned number);

  // Readies block number `index` of the grid, x fastest.
  void prepare(std::uint64_t index);
  // Runs it to its end, or to the next barrier of the cluster, where all its threads wait.
  void run();
  Progress progress() const { return progress_; }

  // The fault in one line, of a block that failed or that ended and wrote beside its arena.
  std::optional<std::string> take_fault();
  // Gives up a block that may not have ended.
  void clean() { stacks_.clean(); }
  std::string where() const;       // "kernel trial, block (0,0,1)"
  std::string block_text() const;  // "block (0,0,1)"
  // Requires a block at a cluster barrier.
  const Wait& wait() const { return waits_.front(); }

 private:
  struct Copy {
    void* shared;
    const void* global;
    std::uint64_t bytes;
  };
  struct Read {
    std::uint64_t address;
    std::uint64_t bytes;
    Site site;
  };
  // What a thread has begun and not waited for, oldest first.
  template <class Item>
  struct InFlight {
    std::vector<Item> items;          // committed groups' items come first
    std::vector<std::size_t> groups;  // items in each

    void clear() {
      items.clear();
      groups.clear();
    }
    void commit() {
      groups.push_back(std::accumulate(groups.begin(), groups.end(), items.size(), std::minus<>{}));
    }
    // Calls end(item) for the items of all groups but the last `pending`, youngest first, as
    // nothing orders them.
    template <class End>
    void wait(int pending, const End& end) {
      const auto left = static_cast<std::ptrdiff_t>(pending);
      if (std::ssize(groups) <= left) return;
      const auto of_left = groups.end() - left;
      const auto last = items.begin() +
                        std::accumulate(groups.begin(), of_left, std::ptrdiff_t{0}, std::plus<>{});
      std::for_each(std::make_reverse_iterator(last), items.rend(), end);
      items.erase(items.begin(), last);
      groups.erase(groups.begin(), of_left);
    }
  };
  // A barrier whose phases are completed by arrivals and bulk copies. Bytes move once a thread
  // waits for them and all have been requested.
  struct BulkBarrier {
    unsigned arrivals = 1;  // expected per phase
    unsigned phase = 0;
    unsigned arrived = 0;                   // in this phase
    std::uint64_t expected = 0, asked = 0;  // and its bytes
    std::vector<Copy> copies{};
    std::vector<int> waiting{};  // threads
  };
  struct Thread {
    BlockRunner* runner = nullptr;
    Fiber fiber;
    void* operands = nullptr;  // at the collective
    InFlight<Copy> copies;
    InFlight<Read> reads;  // reads by wgmma; kept if races are checked
  };
  struct Warp {
    std::uint32_t lanes = 0;  // that exist
    std::uint32_t ready = 0;  // that may run
  };
  // A collective of some warps. A group of warps that lacks a thread waits forever and is reported.
  struct Meeting {
    unsigned first_warp = 0, warps = 1;
    unsigned wanted = 0, arrived = 0;  // threads
    Wait first{};                      // the first thread to arrive
  };

  static BlockRunner& self(Context* context) { return *static_cast<BlockRunner*>(context); }
  static void thread_main(void* argument);
  void install_services();
  void reset();

  // These run on fibers. On a fault they record it in one statement, so that no string is alive
  // when the fiber is abandoned.
  void arrive(Collective collective, Exchange act, Site site);
  void exchange_operands(const Meeting& meeting, Exchange act);
  void stand_still();
  void leave();  // to another thread, until this one is ready
  BulkBarrier& barrier_at(const void* barrier, Site site);
  void arrive_bulk(const void* barrier, std::uint64_t bytes, Site site);
  void copy_bulk(const void* barrier, const Copy& copy, Site site);
  void wait_bulk(const void* barrier, unsigned parity, Site site);
  bool land_bulk(BulkBarrier& barrier, const void* at);
  void check_place(const Wait& first);
  const void* peer_place(const void* in_own, std::uint64_t bytes, int number, Site site);
  void note_peer(const Touch& here, int number);
  void check_allocation(Access access, std::uint64_t address, std::uint64_t bytes, Site site);
  void track_access(Access access, std::uint64_t address, std::uint64_t bytes, Site site);
  bool over_barrier(std::uint64_t address, std::uint64_t bytes) const;
  void note_race(const Race& race, const Touch& here, bool in_arena);
  [[noreturn]] void fail_arena(Access access, std::uint64_t address, std::uint64_t bytes,
                               Site site);
  [[noreturn]] void finish();
  [[noreturn]] void fail_stuck();
  [[noreturn]] void fail_unwaited();
  [[noreturn]] void abandon();
  [[noreturn]] void fail_barrier(const char* what, Site site, const char* remedy);
  void note(const std::string& what, Site site, const std::string& remedy);

  void release(unsigned warp_index);
  unsigned choose(std::uint32_t mask);
  int pick();
  Thread& current() { return threads_[static_cast<std::size_t>(thread)]; }

  LaneOrder order_;
  std::uint64_t seed_;
  std::uint64_t random_state_ = 0;
  RaceChecker* races_;  // where they are checked
  std::span<const std::unique_ptr<BlockRunner>> peers_;
  unsigned number_ = 0;  // within the cluster
  Progress progress_ = Progress::none;
  const Launch* launch_ = nullptr;
  const vq::host::Entry* entry_ = nullptr;
  unsigned count_ = 0;  // threads per block
  std::optional<GuardedBlock> arena_;
  Stacks stacks_;
  Fiber main_;
  std::vector<Thread> threads_;
  std::array<bool, kMostThreads> waited_{};  // per thread: has waited for the previous launch
  std::vector<ThreadState> states_;
  std::vector<Wait> waits_;
  std::array<Warp, kMostThreads / kWarpLanes> warps_;
  std::uint32_t ready_warps_ = 0;
  unsigned returned_ = 0;
  Meeting of_block_;
  Meeting of_cluster_;  // the threads of this block
  std::array<Meeting, kMostThreads / kWarpLanes> of_warp_;
  std::array<Meeting, kMostThreads / kWarpLanes / kGroupWarps> of_group_;
  std::map<const void*, BulkBarrier> barriers_;
  std::optional<std::string> fault_;
};

}  // namespace vqgen::host

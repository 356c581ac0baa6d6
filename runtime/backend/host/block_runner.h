// Runs the threads of one block as fibers, one at a time. A thread runs until it waits in a
// collective or returns; then the runner picks the next ready lane. Two bit masks say which: warps
// with a ready lane, and ready lanes a warp, so that picking and releasing cost no allocation and
// no search. The forward and the reverse order exhaust one warp before they start the next, so that
// a warp that runs far ahead of the others shows a missing barrier. At a barrier of its cluster the
// block stands still until it is given another turn (cluster_runner.h).
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
inline constexpr unsigned kGroupWarps = 4;  // of a warp group
inline constexpr unsigned kMostThreads = 1024;

enum class ThreadState : unsigned char { ready, waiting, returned };

// Where a waiting thread waits.
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

// How far a block has come: it has not begun, stands at a barrier of its cluster, has ended, or
// runs or was given up for a fault.
enum class Progress : unsigned char { none, at_cluster_barrier, ended, failed };

// Of a worker, for each block of a cluster; reused from block to block and from launch to launch.
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

  // What went wrong, in one line: of a block that failed, or that ended and wrote beside its arena.
  std::optional<std::string> take_fault();
  // Gives up a block that may not have ended.
  void clean() { stacks_.clean(); }
  std::string where() const;       // "kernel trial, block (0,0,1)"
  std::string block_text() const;  // "block (0,0,1)"
  // Of a block at a barrier of the cluster.
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
    std::vector<Item> items;          // first those of the committed groups
    std::vector<std::size_t> groups;  // items in each

    void clear() {
      items.clear();
      groups.clear();
    }
    void commit() {
      groups.push_back(std::accumulate(groups.begin(), groups.end(), items.size(), std::minus<>{}));
    }
    // Calls end(item) for those of all groups but the last `pending`, which are done: the youngest
    // first, since nothing orders them.
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
  // A barrier whose phases arrivals and bulk copies complete. Bytes move when a thread waits for
  // them and all have been asked for.
  struct BulkBarrier {
    unsigned arrivals = 1;  // of a phase
    unsigned phase = 0;
    unsigned arrived = 0;                   // of this phase
    std::uint64_t expected = 0, asked = 0;  // and its bytes
    std::vector<Copy> copies{};
    std::vector<int> waiting{};  // threads
  };
  struct Thread {
    BlockRunner* runner = nullptr;
    Fiber fiber;
    void* operands = nullptr;  // at the collective
    InFlight<Copy> copies;
    InFlight<Read> reads;  // of products of the warp group, where races are checked
  };
  struct Warp {
    std::uint32_t lanes = 0;  // that exist
    std::uint32_t ready = 0;  // that may run
  };
  // Where the threads of some warps come together. A group of warps that lacks a thread waits for
  // ever, and is reported so.
  struct Meeting {
    unsigned first_warp = 0, warps = 1;
    unsigned wanted = 0, arrived = 0;  // threads
    Wait first{};                      // of the first to arrive
  };

  static BlockRunner& self(Context* context) { return *static_cast<BlockRunner*>(context); }
  static void thread_main(void* argument);
  void install_services();
  void reset();

  // Called on fibers. Those that find a fault note it in one statement, so that no string is alive
  // when the next one abandons the fiber.
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
  unsigned number_ = 0;  // of the cluster
  Progress progress_ = Progress::none;
  const Launch* launch_ = nullptr;
  const vq::host::Entry* entry_ = nullptr;
  unsigned count_ = 0;  // threads of a block
  std::optional<GuardedBlock> arena_;
  Stacks stacks_;
  Fiber main_;
  std::vector<Thread> threads_;
  std::array<bool, kMostThreads> waited_{};  // for the last launch, a thread each
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

// Runs the threads of one block as fibers, one at a time. A thread runs until it waits in a
// collective or returns; then the runner picks the next ready lane. Two bit masks say which: warps
// with a ready lane, and ready lanes a warp, so that picking and releasing cost no allocation and
// no search. The forward and the reverse order exhaust one warp before they start the next, so that
// a warp that runs far ahead of the others shows a missing barrier.
#pragma once

#include <vq/host_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/plan/kernel_source.h"
#include "runtime/backend/host/fiber.h"
#include "runtime/backend/host/guarded_block.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/backend/host/host_memory.h"
#include "runtime/backend/host/race_checker.h"
#include "runtime/backend/host/waiting_report.h"

namespace vqgen::host {

inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kGroupWarps = 4;  // of a warp group
inline constexpr unsigned kMostThreads = 1024;

// One entry with its arguments, ready to run. Outlives the runs.
struct Launch {
  const KernelEntry* shape;
  const void* args;
  const HostMemory* memory;
};

// One a worker; reused from block to block and from launch to launch.
class BlockRunner : private vq::host::Context {
 public:
  BlockRunner(LaneOrder order, std::uint64_t seed, bool check_races);
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // Readies arena and stacks; `entry` is this worker's own copy. Error(device) when memory is full.
  void begin(const Launch& launch, const vq::host::Entry& entry);

  // Runs block number `index` of the grid, x fastest. nullopt where all is well, else what went
  // wrong, in one line.
  std::optional<std::string> run(std::uint64_t index);

 private:
  struct Copy {
    vq::u32* shared;
    const vq::u32* global;
  };
  struct Read {
    std::uint64_t address;
    std::uint64_t bytes;
    vq::host::Site site;
  };
  struct Thread {
    BlockRunner* runner = nullptr;
    int index = 0;
    Fiber fiber;
    void* operands = nullptr;         // at the warp's collective
    std::vector<Copy> copies;         // in flight or not yet committed, oldest first
    std::vector<std::size_t> groups;  // copies in each committed group, oldest first
    // The same of products of the warp group, where races are checked.
    std::vector<Read> reads;
    std::vector<std::size_t> read_groups;
  };
  struct Warp {
    std::uint32_t lanes = 0;    // that exist
    std::uint32_t ready = 0;    // that may run
    std::uint32_t arrived = 0;  // at the warp's collective
  };

  static BlockRunner& self(vq::host::Context* context) {
    return *static_cast<BlockRunner*>(context);
  }
  static void thread_main(void* argument);
  void install_services();
  void reset();

  // Called on fibers. Those that find a fault note it in one statement, so that no string is alive
  // when the next one abandons the fiber.
  void arrive_block(vq::host::Site site);
  void arrive_warp(vq::host::Collective collective, vq::host::Exchange act, vq::host::Site site);
  void arrive_group(vq::host::Collective collective, vq::host::Exchange act, vq::host::Site site);
  void exchange_operands(unsigned warp_index, unsigned warps, vq::host::Exchange act);
  void wait();
  void land(std::size_t pending_groups);
  void end_reads(std::size_t pending_groups);
  void check_place(const Wait& first);
  void check_allocation(vq::host::Access access, std::uint64_t address, std::uint64_t bytes,
                        vq::host::Site site);
  void track_access(vq::host::Access access, std::uint64_t address, std::uint64_t bytes,
                    vq::host::Site site);
  void note_race(const Race& race, const Touch& here, bool in_arena);
  [[noreturn]] void fail_arena(vq::host::Access access, std::uint64_t address, std::uint64_t bytes,
                               vq::host::Site site);
  [[noreturn]] void finish();
  [[noreturn]] void fail_stuck();
  [[noreturn]] void fail_unwaited();
  [[noreturn]] void abandon();
  void note(const std::string& what, vq::host::Site site, const std::string& remedy);
  std::string where() const;

  void release(unsigned warp_index);
  unsigned choose(std::uint32_t mask);
  int pick();
  Thread& current() { return threads_[static_cast<std::size_t>(thread)]; }

  LaneOrder order_;
  std::uint64_t seed_;
  std::uint64_t random_state_ = 0;
  std::optional<RaceChecker> races_;  // where they are checked
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
  unsigned at_barrier_ = 0;
  unsigned returned_ = 0;
  Wait barrier_{};                                                 // of the first to arrive
  std::array<Wait, kMostThreads / kWarpLanes> warp_collective_{};  // the same, a warp
  // Threads of each warp group at its collective, and the first of them to arrive.
  std::array<unsigned, kMostThreads / kWarpLanes / kGroupWarps> at_group_{};
  std::array<Wait, kMostThreads / kWarpLanes / kGroupWarps> group_collective_{};
  std::optional<std::string> fault_;
};

}  // namespace vqgen::host

// The interface between a loaded host kernel and the runner that calls it: plain C++, in the
// kernel's text and in the runner. Raise kApiVersion with every change.
#pragma once

#include <vq/types.h>

namespace vq::host {

inline constexpr int kApiVersion = 11;

// A place in the device code; the text's #line marks name the template.
struct Site {
  const char* file;
  int line;
};

enum class Access : int {
  kLoadGlobal,
  kStoreGlobal,
  kLoadShared,
  kStoreShared,
  kCopyAsync,
  kLdmatrix,
  kWarpgroupMma,
  // These access global memory that other threads write meanwhile, ordered by the kernel's own
  // protocol.
  kLoadGlobalCoherent,
  kAtomicAddGlobal,
  kLoadConstant,
  kCopyBulk,
  kCountShared,  // a counter too, of the threads of the block
  kAddShared,    // additions of several threads commute
  kLoadPeer      // from another block's shared memory in the cluster
};
enum class Collective : int {
  kSyncBlock,
  kSyncWarp,
  kShuffleXor,
  kShuffle,
  kMma,
  kLdmatrix,
  kMovmatrix,
  kVote,
  kLargest,
  kWarpgroupMma,     // takes four warps; all others take one, or the block
  kBulkBarrierWait,  // each thread waits by itself: no collective
  kSyncCluster,      // takes all threads of all blocks of the cluster
  kLeaveCluster      // takes all threads of all blocks of the cluster
};

// A lane that needs one that its warp does not have; lane < 0 where all is well.
struct Refusal {
  int lane;
  int wanted;
};
// What a collective of a warp or warpgroup does once all have arrived: operands[lane] is the lane's
// argument, null for a lane that its warp lacks.
using Exchange = Refusal (*)(void* const* operands);

// The running thread as its kernel sees it, and what the kernel asks of the runner. One a worker.
// A service that finds a fault does not return: the block is given up.
struct Context {
  int thread;
  int block[3];
  u8* shared;
  u64 shared_bytes;
  // The allocation that the last global access fell into; the fast path of the next one.
  u64 range_begin;
  u64 range_bytes;
  bool* waited;  // per thread: has it called after_last_launch()?

  void (*synchronize)(Context*, Collective, Site);
  void (*exchange)(Context*, Collective, void* operands, Exchange, Site);
  // Off the fast path: finds the allocation (and moves the range there), or reports the fault.
  void (*check_global)(Context*, Access, u64 address, u64 bytes, Site);
  void (*fail_shared)(Context*, Access, u64 address, u64 bytes, Site);
  // Every access that passed its checks, where the text is compiled to check races.
  void (*track)(Context*, Access, u64 address, u64 bytes, Site);
  // Records a read by wgmma, which lasts until the thread has waited for it. Null unless races are
  // checked.
  void (*warpgroup_read)(Context*, u64 address, u64 bytes, Site);
  void (*warpgroup_commit)(Context*);
  void (*warpgroup_wait)(Context*, int pending_groups);
  void (*copy_async)(Context*, void* shared, const void* global, u64 bytes);
  void (*copy_async_commit)(Context*);
  void (*copy_async_wait)(Context*, int pending_groups);
  // A barrier in shared memory whose phases arrivals and bulk copies complete, and which threads
  // wait for.
  void (*bulk_begin)(Context*, const u64* barrier, u32 arrivals);
  void (*bulk_arrive)(Context*, const u64* barrier, u64 bytes, Site);  // bytes are to come
  void (*bulk_copy)(Context*, void* shared, const void* global, u64 bytes, const u64* barrier,
                    Site);
  void (*bulk_wait)(Context*, const u64* barrier, u32 parity, Site);
  // Address in block `block` of the cluster that corresponds to this block's `shared`, for a load.
  const void* (*peer)(Context*, const void* shared, u64 bytes, int block, Site);
};

// The struct that VQ_KERNEL(name, ...) exports as vq_entry_<name>.
struct Entry {
  int api_version;
  int threads;
  int cluster;  // blocks of z that run together
  u64 args_bytes;
  void (*run)(const void* args);
  Context** context;  // the library's one slot; the runner sets it before it calls run
  bool tracks;        // compiled with VQ_CHECK_RACES
};

}  // namespace vq::host

// The shape of a launch: what a plan takes of a GPU to do a problem. Each dataflow works it out in
// one function,
//
//   CallShape call_shape(config, batch, tokens)
//
// and nobody else does.
#pragma once

#include <vq/layout/format.h>

namespace vq {

// The workspace of a call whose kernels pass data on, or whose splits store partial sums:
//
//   counters, kCounterBytes | rows in the basis | what a kernel passes to the next | partials
//
// A CallShape's sizes count all of it. The library keeps the counters in its own memory, so that a
// caller's workspace may hold anything.
inline constexpr i64 kCounterBytes = 65536;
inline constexpr i64 kMostCounters = kCounterBytes / 4;

// One kernel of a call. Grid and threads are what the launch takes; dynamic shared memory of one
// block.
struct Launch {
  const char* function;  // the template that it runs
  const char* part;      // what the kernel's name says beside the op, "" for the main one
  i64 x, y, z;
  int threads;
  i64 shared_bytes;
  bool ahead;               // the kernel itself waits for the previous launch
  bool looks_up;            // entries
  int resident = 0;         // blocks per SM that registers must allow; 0: no request
  int cluster = 1;          // blocks of z, one after the other, that form a cluster
  int together = 0;         // most blocks per SM; 0: no limit
  bool ends_first = false;  // the next launch begins no block before this one has ended
};

// Blocks of a cluster that every GPU with clusters takes.
inline constexpr int kMostClusterBlocks = 8;

inline constexpr int kMostLaunches = 8;

// Bytes beside each stage of a pipeline (ops/bulk_ring.cuh, ops/made_ring.cuh): its barrier, and
// its readers' count or barrier.
inline constexpr int kRingBesideBytes = 16;

// A call: its kernels in order, and its workspace.
// Rows of codes begin at multiples of code_bytes, rows of elements at multiples of element_bytes.
struct CallShape {
  Launch launches[kMostLaunches];
  int count;
  i64 basis_bytes;   // of the workspace, rows in the basis of the cache (layout/basis.h)
  i64 handed_bytes;  // workspace passed from one kernel to the next
  i64 workspace_bytes;
  int splits = 1;  // blocks that share a result
  i64 counters;    // results that blocks share: what merging by the last block takes
  int code_bytes = 4;
  int element_bytes = 2;

  VQ_HD constexpr void add(const Launch& launch) { launches[count++] = launch; }
  // The most of any kernel.
  VQ_HD constexpr i64 shared_bytes() const {
    i64 most = 0;
    for (int i = 0; i < count; ++i) {
      if (launches[i].shared_bytes > most) most = launches[i].shared_bytes;
    }
    return most;
  }
  // The most of the kernels that look up entries; of any kernel if none does.
  VQ_HD constexpr i64 main_shared_bytes() const {
    i64 most = -1;
    for (int i = 0; i < count; ++i) {
      if (launches[i].looks_up && launches[i].shared_bytes > most) most = launches[i].shared_bytes;
    }
    return most < 0 ? shared_bytes() : most;
  }
  // Blocks of the main kernel; of the smaller if two kernels look up entries.
  VQ_HD constexpr i64 blocks() const {
    i64 least = 0;
    for (int i = 0; i < count; ++i) {
      const Launch& each = launches[i];
      const i64 all = each.x * each.y * each.z;
      if (each.looks_up && (least == 0 || all < least)) least = all;
    }
    return least;
  }
};

}  // namespace vq

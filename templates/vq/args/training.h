// What the kernels of training take (templates/vq/training/), and the shape of their blocks, shared
// by host and device. Device pointers; nothing is owned. A book is the vectors of one codebook.
//
// Grid: (blocks of a book's vectors, kTrainingBooksAtOnce or fewer books, as often as need be).
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

struct TrainingArgs {
  static constexpr const char* kType = "TrainingArgs";
  const float* vectors;  // [all][size], 16-byte aligned
  const u32* begins;     // [books + 1]: book b has vectors begins[b] .. begins[b + 1]
  const float* entries;  // [books][count][size]
  const float* factors;  // [books][2]: of elements, of squared distances
  u64* sums;             // [books][count][size + 2], two's complement; zeros before
  float* left;           // [all][size]: vectors less their nearest entries; may be `vectors`
  u32* peaks;            // [books][blocks][kTrainingWarps]: bits of the largest magnitude
  const u32* picks;      // [books][count]: numbers of vectors within their books
  float* picked;         // [books][count][size]
  i32 count;             // entries, or picks, of a book
  i32 blocks;            // per book: the grid's x
  i32 books;
};

inline constexpr int kTrainingThreads = 256;
inline constexpr int kTrainingWarps = kTrainingThreads / 32;
inline constexpr int kTrainingBooksAtOnce = 32768;  // along the grid's y
inline constexpr int kTrainingSliceBytes = 16384;   // bytes of entries in shared memory at once

// Sub-vectors per thread in registers, so that an entry is read once for all of them.
VQ_HD constexpr int training_own(int size) { return size <= 4 ? 8 : size <= 8 ? 4 : 2; }
VQ_HD constexpr int training_block_vectors(int size) {
  return kTrainingThreads * training_own(size);
}
// A slice of entries, then the nearest entry and its distance of each vector.
VQ_HD constexpr int training_shared_bytes(int size) {
  return kTrainingSliceBytes + training_block_vectors(size) * 8;
}

}  // namespace vq

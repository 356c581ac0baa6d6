// What the kernels that rotate rows take (templates/vq/rotation/), and the shape of their blocks,
// shared by host and device. Device pointers; nothing is owned.
//
// Grid: (parts of a row, rows at once)
#pragma once

#include <vq/annotations.h>
#include <vq/layout/rotation.h>
#include <vq/types.h>

namespace vq {

struct RotationArgs {
  static constexpr const char* kType = "RotationArgs";
  const u16* x;        // [rows][features], 8-byte aligned
  const float* signs;  // [features], 16-byte aligned
  const u32* table;    // [order][words of a row]: bit c is set if element c of the row is -1
  u16* y;              // [rows][features], 8-byte aligned; not x
  i64 rows;
  float scale;       // the root of 1 / features
  i32 rows_at_once;  // the grid's y
};

inline constexpr int kRotationThreads = 256;

// Features are m times a power of two. A block makes, of each of m pieces of a row, the outputs of
// 2^low neighbouring features; `most` bounds them, so that a launch for few rows has many blocks.
VQ_HD constexpr int rotation_low_bits(int order, int bits, int most) {
  int low = 2;
  while (low < bits && (order << (low + 1)) <= most) ++low;
  return low;
}
VQ_HD constexpr int rotation_table_words(int order) { return (order + 31) / 32; }
VQ_HD constexpr int rotation_shared_bytes(int order, int low) { return 4 * order << low; }

}  // namespace vq

// Operand b of wgmma in shared memory, and its descriptor (PTX ISA, "Asynchronous warpgroup level
// matrix shared memory layout": K-major, no swizzling). x^T is b: rows of x are columns of b. Both
// machines read this one definition.
//
//   core matrix   8 rows of x by 8 columns, an octet: 128 contiguous bytes, row by row
//   descriptor    bits 0..13   the first core matrix's place in the block's shared memory
//                 bits 16..29  bytes from a core matrix to the next octet's
//                 bits 32..45  bytes from a core matrix to that of the next 8 rows
//
// all in units of 16 bytes. An MMA takes two octets, 16 columns.
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

inline constexpr int kGroupWarps = 4;  // that multiply together
inline constexpr int kCoreRows = 8;
inline constexpr int kCoreRowBytes = 16;
inline constexpr int kCoreBytes = kCoreRows * kCoreRowBytes;
inline constexpr u32 kCoreField = 0x3fffu;

VQ_HD constexpr u64 core_descriptor(u32 address, int octet_bytes, int rows_bytes) {
  return u64{address / kCoreRowBytes & kCoreField} |
         u64{static_cast<u32>(octet_bytes) / kCoreRowBytes & kCoreField} << 16 |
         u64{static_cast<u32>(rows_bytes) / kCoreRowBytes & kCoreField} << 32;
}

// The descriptor moved by `bytes`, a multiple of 16, within shared memory.
VQ_HD constexpr u64 advanced(u64 descriptor, int bytes) {
  return descriptor + static_cast<u32>(bytes / kCoreRowBytes);
}

// Byte address of the 8 elements of a row in octet number `octet`.
VQ_HD constexpr u32 core_row(u64 descriptor, int row, int octet) {
  const u32 first = static_cast<u32>(descriptor) & kCoreField;
  const u32 of_octet = static_cast<u32>(descriptor >> 16) & kCoreField;
  const u32 of_rows = static_cast<u32>(descriptor >> 32) & kCoreField;
  return (first + static_cast<u32>(octet) * of_octet + static_cast<u32>(row / kCoreRows) * of_rows +
          static_cast<u32>(row % kCoreRows)) *
         kCoreRowBytes;
}

}  // namespace vq

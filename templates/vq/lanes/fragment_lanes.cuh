// Which part of an MMA operand a lane has. Comments call a lane (g, c):
//
//   g   lane_group()      0..7   PTX's groupID            row of operands a and c, column of b
//   c   place_in_group()  0..3   PTX's threadID_in_group  which words of that row or column
//
// The PTX ISA ("Matrix Fragments for mma.m16n8k16" and other shapes) and
// machine/host/vq/fragments.h list all elements. For ldmatrix lane 8 m + r gives the address of row
// r of matrix m.
#pragma once

#include <vq/machine.cuh>

namespace vq {

inline constexpr int kGroupLanes = 4;  // lanes below it are group 0
VQ_DEVICE int lane_group() { return lane() / kGroupLanes; }
VQ_DEVICE int place_in_group() { return lane() % kGroupLanes; }
VQ_DEVICE int group_pair() { return lane() / 8; }  // g / 2

VQ_DEVICE int ldmatrix_number() { return lane() / 8; }
VQ_DEVICE int ldmatrix_row() { return lane() % 8; }

}  // namespace vq

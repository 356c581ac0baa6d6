// Which matrix element each lane holds for tensor-core collectives (PTX ISA: mma.m16n8k16,
// mma.m16n8k32, wgmma, ldmatrix). The emulation and the tests read these maps, and tests/cuda
// checks them against hardware. With g = group(lane) and t = in_group(lane):
//
//   m16n8k16  A 16x16: elements 0,1  (g, 2t + 0,1)   2,3  (g + 8, ..)   4..7  columns + 8
//             B 16x8:  elements 0,1  (2t + 0,1, g)   2,3  rows + 8
//   m16n8k32  A 16x32: elements 0..3 (g, 4t + 0..3)  4..7 (g + 8, ..)   8..15 columns + 16
//             B 32x8:  elements 0..3 (4t + 0..3, g)  4..7 rows + 16
//   both      C, D 16x8: elements 0,1 (g, 2t + 0,1)  2,3  (g + 8, ..)
//   m64nNk16  each of four warps as in m16n8k16: A its 16 rows, D columns 8j .. 8j + 7 in
//             elements 4j .. 4j + 3
//   8x8       elements 0,1 (g, 2t + 0,1), transposed (2t + 0,1, g)
//
// Element i of 16 bits is half i % 2 of register i / 2, low half first; element i of 8 bits is byte
// i % 4 of register i / 4, lowest first.
#pragma once

namespace vq::fragment {

struct Place {
  int row, column;
};

constexpr int group(int lane) { return lane / 4; }     // PTX's groupID
constexpr int in_group(int lane) { return lane % 4; }  // threadID_in_group

constexpr Place a_m16n8k16(int lane, int i) {
  return {group(lane) + i / 2 % 2 * 8, in_group(lane) * 2 + i % 2 + i / 4 * 8};
}
constexpr Place b_m16n8k16(int lane, int i) {
  return {in_group(lane) * 2 + i % 2 + i / 2 * 8, group(lane)};
}
constexpr Place a_m16n8k32(int lane, int i) {
  return {group(lane) + i / 4 % 2 * 8, in_group(lane) * 4 + i % 4 + i / 8 * 16};
}
constexpr Place b_m16n8k32(int lane, int i) {
  return {in_group(lane) * 4 + i % 4 + i / 4 * 16, group(lane)};
}
constexpr Place c_m16n8(int lane, int i) {
  return {group(lane) + i / 2 * 8, in_group(lane) * 2 + i % 2};
}
constexpr Place c_m64n(int lane, int i) {
  const Place place = c_m16n8(lane, i % 4);
  return {place.row, place.column + i / 4 * 8};
}
constexpr Place m8n8(int lane, int i, bool transposed) {
  const int along = in_group(lane) * 2 + i;
  return transposed ? Place{along, group(lane)} : Place{group(lane), along};
}

}  // namespace vq::fragment

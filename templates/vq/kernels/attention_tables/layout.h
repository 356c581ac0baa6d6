// Score tables of attention by tables, and the shape of its launch.
#pragma once

#include <vq/kernels/attention_tables/plan.h>
#include <vq/layout/attention_tiles.h>

namespace vq {

// Entry e's inner product with sub-vector s, of `table_heads` query heads side by side that
// one lookup brings; more heads are further planes:
//
//   table [plane][stage][entry][table_columns][table_heads] of table_bits, stage scales included
//
// 8 lanes share a token, each with a run of lane_sub_vectors whose codes are side by side; column
// 8 j + l is sub-vector j of lane l's run, so that lanes which look up together have columns side
// by side:
//
//   column      |  0            |  1            | ..  7 |  8                |  9                |
//   .. sub-vector  |  0            |  n            |    7n |  1                |  n + 1 |
VQ_HD constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}
inline constexpr int kTableLanes = 8;
VQ_HD constexpr int lane_sub_vectors(const AttentionConfig<AttentionTables>& c) {
  return ceil_div(c.head_dim / c.keys.vector_size, kTableLanes);
}
VQ_HD constexpr int table_columns(const AttentionConfig<AttentionTables>& c) {
  return kTableLanes * lane_sub_vectors(c);
}
VQ_HD constexpr int table_heads(const AttentionConfig<AttentionTables>& c) {
  const int most = 128 / c.table_bits;  // the widest access
  const int wanted = power_of_two_from(c.heads_per_block);
  return wanted < most ? wanted : most;
}
VQ_HD constexpr int table_planes(const AttentionConfig<AttentionTables>& c) {
  return ceil_div(c.heads_per_block, table_heads(c));
}
VQ_HD constexpr i64 table_bytes(const AttentionConfig<AttentionTables>& c) {
  return i64{table_planes(c)} * c.keys.residuals * entries(c.keys) * table_columns(c) *
         table_heads(c) * (c.table_bits / 8);
}

VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionTables>& c, i64 batch, i64) {
  return attention_shape(c, batch, "attention_tables",
                         shared_layout(c, AttentionPart::kWhole).total, false);
}

}  // namespace vq

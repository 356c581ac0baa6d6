// The basis that a cache's keys or values stand in: less a mean, and rotated by an orthogonal
// matrix (a Karhunen-Loeve transform), per KV head,
//
//   z = (x - mean) rotation,      x = z rotation^T + mean
//
// Codes and raw slots hold z; what comes in and goes out is x. Kernels of their own change the
// basis (ops/basis.cuh), so that a dataflow need not know of it:
//
//   attention     q' = q rotation before, out = out' rotation^T + mean after; the log-sum-exp moves
//                 by q . mean of the keys, which is the same for all tokens. The one after also
//                 merges splits; int8_mma with fused_basis does without both
//   kv_append     new rows before
//   kv_dequantize the dense rows after
#pragma once

#include <vq/layout/launch.h>

namespace vq {

struct Basis {
  bool mean;
  bool rotation;

  VQ_HD constexpr bool none() const { return !mean && !rotation; }

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using B = Basis;
    visit("mean", &B::mean);
    visit("rotation", &B::rotation);
  }
};

// Rows that a block changes at once: tokens, or heads of attention, kBasisHeads of a sequence. A
// warp makes kBasisChannels of each.
inline constexpr int kBasisTile = 16;
inline constexpr int kBasisHeads = 4;
inline constexpr int kBasisChannels = 8;
// Channels of the rows whose factors warps exchange at once.
inline constexpr int kBasisPiece = 64;
VQ_HD constexpr int basis_threads(int head_dim) { return head_dim / kBasisChannels * 32; }

// Elements from such a row to the next in shared memory, so that ldmatrix has no bank conflicts.
VQ_HD constexpr int basis_row(int head_dim) { return head_dim + 8; }
// True if the registers of a warp hold its factors.
VQ_HD constexpr bool holds_factors(int head_dim) { return head_dim <= 128 && head_dim % 16 == 0; }

// Shared memory of the rows, each in two elements where it goes without its mean, and behind them
// of factors, two elements each; attention has behind both where rows belong, and their
// log-sum-exps.
VQ_HD constexpr i64 basis_rows_shared(int head_dim) {
  return i64{2} * kBasisTile * basis_row(head_dim) * 2;
}
VQ_HD constexpr i64 basis_shared(int head_dim) {
  if (!holds_factors(head_dim)) return basis_rows_shared(head_dim);
  const int of_rows = kBasisPiece * basis_row(head_dim);     // on the way in
  const int of_columns = head_dim * basis_row(kBasisPiece);  // on the way out
  return basis_rows_shared(head_dim) + i64{4} * (of_rows > of_columns ? of_rows : of_columns);
}
VQ_HD constexpr i64 basis_tiles_shared(int head_dim) {
  return basis_shared(head_dim) + kBasisTile * 8;
}
// Blocks that share `rows` of a rotation of `rotations`: about one per SM of a large GPU, so that a
// block reads the rotation once for several.
VQ_HD constexpr i64 basis_blocks(int rotations, i64 rows) {
  const i64 most = ceil_div(i64{128}, i64{rotations});
  return rows < most ? rows : most;
}

// Byte offsets of what the first kernel of a call hands to the others, from the workspace's
// `basis`.
struct BasisRows {
  i64 query;  // [rows][query_heads][channel]
  i64 keys;   // new_keys and new_values
  i64 values;
  i64 total;
};

// The rows that a kernel changes: of the operands that are in a basis, or, as a block's threads
// follow from the channels of its rows, of keys or values alone where these have different sizes.
enum class BasisOf : int { kAll = 0, kKeys = 1, kValues = 2 };
template <class Config>
VQ_HD constexpr bool changes_keys(const Config& c, BasisOf of) {
  return of != BasisOf::kValues && !c.key_basis.none();
}
template <class Config>
VQ_HD constexpr bool changes_values(const Config& c, BasisOf of) {
  return of != BasisOf::kKeys && !c.value_basis.none();
}
template <class Config>
VQ_HD constexpr int basis_operands(const Config& c, BasisOf of) {
  return (changes_keys(c, of) ? 1 : 0) + (changes_values(c, of) ? 1 : 0);
}
// Whether number `kind` of them are the values.
template <class Config>
VQ_HD constexpr bool is_of_values(const Config& c, BasisOf of, int kind) {
  return !changes_keys(c, of) || kind == 1;
}
template <class Config>
VQ_HD constexpr int basis_dim(const Config& c, BasisOf of) {
  return of == BasisOf::kValues ? c.value_dim : c.head_dim;
}
// Calls launch(of) for each kernel that changes rows of these operands.
template <class Config, class AddLaunch>
VQ_HD constexpr void for_each_basis(const Config& c, AddLaunch&& launch) {
  if (c.value_dim == c.head_dim) {
    if (basis_operands(c, BasisOf::kAll) > 0) launch(BasisOf::kAll);
    return;
  }
  if (!c.key_basis.none()) launch(BasisOf::kKeys);
  if (!c.value_basis.none()) launch(BasisOf::kValues);
}

// Inserts a launch before all others, or adds one behind them.
VQ_HD constexpr void add_first(CallShape& shape, const Launch& launch) {
  for (int i = shape.count; i > 0; --i) shape.launches[i] = shape.launches[i - 1];
  shape.launches[0] = launch;
  ++shape.count;
}

// Room in the workspace for rows in the basis, before all else behind the counters.
VQ_HD constexpr void hand_basis(CallShape& shape, i64 bytes) {
  if (bytes == 0) return;
  if (shape.workspace_bytes == 0) shape.workspace_bytes = kCounterBytes;
  shape.workspace_bytes += bytes;
  shape.basis_bytes = bytes;
}

}  // namespace vq

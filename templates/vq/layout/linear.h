// Compile-time facts of one GEMV or GEMM kernel, y = x W^T, shared by its dataflows. A block serves
// some output features and loops over its share of the input features, a chunk of columns at a
// time; a warp serves outputs_per_warp outputs and rows_per_block rows. Grid: (blocks of outputs,
// blocks of rows, splits); MoE: (.., 1, slots of rows * splits), splits the faster
// (ops/experts.cuh).
//
// MoE weights are dense, expert after expert: codes [experts][expert_words], codebooks
// [experts][expert_units][stage][entry][vector_size], stage scales [experts][expert_units][stage],
// output scales [experts][out_features].
#pragma once

#include <vq/layout/launch.h>

namespace vq {

// What becomes of the sums of a row of x before they are y. Rows of W are runs of gate_rows gate
// rows, each followed by its run of as many up rows; y = silu(gate) up has half as many columns.
struct LinearEpilogue {
  i64 gate_rows;    // 0: each row of W is a column of y
  bool multiplied;  // by a number of the call
  bool residual;    // an argument is added

  VQ_HD constexpr bool none() const { return gate_rows == 0 && !multiplied && !residual; }
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearEpilogue;
    visit("gate_rows", &P::gate_rows);
    visit("multiplied", &P::multiplied);
    visit("residual", &P::residual);
  }
};

// What a kernel knows of its problem.
struct LinearProblem {
  Element element;
  int rows;        // MoE: at most, per expert
  int experts;     // 0: one matrix
  int total_rows;  // most of all experts together
  i64 out_features;
  i64 in_features;
  bool output_scales;
  i64 unit_rows;         // output features that one codebook unit serves
  i64 unit_columns;      // input features that one codebook unit serves
  FormatConfig weights;  // unit_elements is not used: unit_columns says it
  LinearEpilogue epilogue;

  static constexpr const char* kType = "LinearProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearProblem;
    visit("element", &P::element);
    visit("rows", &P::rows);
    visit("experts", &P::experts);
    visit("total_rows", &P::total_rows);
    visit("out_features", &P::out_features);
    visit("in_features", &P::in_features);
    visit("output_scales", &P::output_scales);
    visit("unit_rows", &P::unit_rows);
    visit("unit_columns", &P::unit_columns);
    visit("weights", &P::weights);
    visit("epilogue", &P::epilogue);
  }
};

// Problem and plan side by side.
template <class Plan>
struct LinearConfig : LinearProblem, Plan {};

// True if scales of groups of inputs multiply sums of integers; else they multiply elements.
template <class Plan>
VQ_HD constexpr bool scales_integers(const Plan&) {
  return false;
}

// Shared memory for masks of signs (ops/byte_table.cuh).
template <class Plan>
VQ_HD constexpr int mask_bytes(const LinearConfig<Plan>&) {
  return 0;
}

template <class Plan>
VQ_HD constexpr LinearConfig<Plan> configure(const LinearProblem& problem, const Plan& plan) {
  LinearConfig<Plan> c{problem, plan};
  c.weights.placement = c.codebook;
  if (c.weights.group_inputs > 0 && !scales_integers(plan)) c.weights.int8_entries = false;
  return c;
}

// Most blocks of a pre-pass per SM: they start while the previous call runs and would crowd it. No
// limit if entries are looked up in global memory, as L1 is what shared memory leaves.
template <class Plan>
VQ_HD constexpr int together_before(const LinearConfig<Plan>& c) {
  constexpr int kTogether = 3;
  return global_range(c.weights).begin < global_range(c.weights).end ? 0 : kTogether;
}

// A block of the kernel that sums up splits.
inline constexpr int kCombineThreads = 256;

// What a plan fixes or leaves to be derived; dataflows overload these where they differ.
template <class Plan>
VQ_HD constexpr int chunk_columns(const LinearConfig<Plan>& c) {
  return c.chunk_columns;
}
template <class Plan>
VQ_HD constexpr int splits(const LinearConfig<Plan>& c) {
  return c.splits;
}
template <class Plan>
VQ_HD constexpr int outputs_per_block(const LinearConfig<Plan>& c) {
  return c.threads / 32 * c.outputs_per_warp;
}

template <class Plan>
VQ_HD constexpr int block_rows(const LinearConfig<Plan>& c) {
  return c.rows < c.rows_per_block ? c.rows : c.rows_per_block;
}
// Rows that blocks see as their matrix; MoE: those of a slot.
template <class Plan>
VQ_HD constexpr int matrix_rows(const LinearConfig<Plan>& c) {
  return c.experts == 0 ? c.rows : block_rows(c);
}
template <class Plan>
VQ_HD constexpr i64 row_blocks(const LinearConfig<Plan>& c) {
  return ceil_div(matrix_rows(c), c.rows_per_block);
}
// Blocks of rows that there can be of all experts, each one's last with fewer: most where as many
// experts as can have a row have one, and one of them all others. 1 where there is one matrix.
template <class Plan>
VQ_HD constexpr int row_slots(const LinearConfig<Plan>& c) {
  if (c.experts == 0) return 1;
  const int touched = c.experts < c.total_rows ? c.experts : c.total_rows;
  return touched + (c.total_rows - touched) / c.rows_per_block;
}
// Words of one expert, or of the matrix.
VQ_HD constexpr i64 expert_words(const LinearProblem& p) {
  return stored_words(p.weights.layout, p.out_features, row_words(p.weights, p.in_features));
}
VQ_HD constexpr i64 expert_units(const LinearProblem& p) {
  return ceil_div(p.out_features, p.unit_rows) * ceil_div(p.in_features, p.unit_columns);
}
VQ_HD constexpr i64 expert_codebook_elements(const LinearProblem& p) {
  return expert_units(p) * unit_codebook_elements(p.weights);
}
// Counters of a call whose last blocks merge: results that blocks share.
template <class Plan>
VQ_HD constexpr i64 counters(const LinearConfig<Plan>& c) {
  return ceil_div(c.out_features, i64{outputs_per_block(c)}) * row_blocks(c) * row_slots(c);
}
template <class Plan>
VQ_HD constexpr i64 units_per_row(const LinearConfig<Plan>& c) {
  return ceil_div(c.in_features, c.unit_columns);
}
// A chunk lies within one unit or holds whole units.
template <class Plan>
VQ_HD constexpr bool chunk_in_one_unit(const LinearConfig<Plan>& c) {
  return c.unit_columns >= c.in_features || c.unit_columns % chunk_columns(c) == 0;
}
// Columns of y, and the row of W whose sum begins the one at a place.
VQ_HD constexpr i64 y_columns(const LinearProblem& p) {
  return p.epilogue.gate_rows > 0 ? p.out_features / 2 : p.out_features;
}
VQ_HD constexpr i64 first_row_of(const LinearProblem& p, i64 column) {
  const i64 run = p.epilogue.gate_rows;
  return run > 0 ? column / run * (2 * run) + column % run : column;
}
// True if a block's outputs hold the up row of each gate row.
template <class Plan>
VQ_HD constexpr bool holds_pairs(const LinearConfig<Plan>& c) {
  return c.epilogue.gate_rows == 0 || outputs_per_block(c) % (2 * c.epilogue.gate_rows) == 0;
}
// Blocks that share columns of y: those of the splits, of a run of gate rows and of its up rows.
template <class Plan>
VQ_HD constexpr int sharing_blocks(const LinearConfig<Plan>& c) {
  return splits(c) * (holds_pairs(c) ? 1 : 2);
}
// Units that one chunk of columns touches.
template <class Plan>
VQ_HD constexpr int units_per_chunk(const LinearConfig<Plan>& c) {
  return chunk_in_one_unit(c) ? 1
                              : static_cast<int>(ceil_div(i64{chunk_columns(c)}, c.unit_columns));
}
template <class Plan>
VQ_HD constexpr i64 chunks(const LinearConfig<Plan>& c) {
  return ceil_div(c.in_features, i64{chunk_columns(c)});
}

// True if blocks that share outputs and rows form a cluster.
template <class Plan>
VQ_HD constexpr bool in_clusters(const LinearConfig<Plan>& c) {
  return c.combine == Combine::cluster;
}
// True if warps write sums when no other warp needs the block's shared memory any more.
template <class Plan>
VQ_HD constexpr bool writes_at_end(const LinearConfig<Plan>&) {
  return true;
}
// True if a block keeps its sums [rows_per_block][outputs] in shared memory, padded so that lanes
// of 8 outputs and 4 pairs of rows store without bank conflicts, and no partials go through the
// workspace: blocks of clusters, and those that have all sums of an epilogue.
template <class Plan>
VQ_HD constexpr bool keeps_sums(const LinearConfig<Plan>& c) {
  const bool alone = sharing_blocks(c) == 1 && writes_at_end(c);
  return in_clusters(c) || (!c.epilogue.none() && alone);
}
template <class Plan>
VQ_HD constexpr int sums_pitch(const LinearConfig<Plan>& c) {
  return outputs_per_block(c) + 4;
}
template <class Plan>
VQ_HD constexpr i64 sums_bytes(const LinearConfig<Plan>& c) {
  return keeps_sums(c) ? i64{4} * c.rows_per_block * sums_pitch(c) : 0;
}
template <class Plan>
VQ_HD constexpr bool stores_partials(const LinearConfig<Plan>& c) {
  return !keeps_sums(c) && (splits(c) > 1 || !c.epilogue.none());
}

// Byte offsets in the block's shared memory; a part that the dataflow lacks has no bytes. The
// sums that a block keeps overwrite codebook and x, but not barriers, when all MMAs are done.
struct LinearShared {
  CodebookShared codebook;
  i64 x;       // what each dataflow makes of x: x_bytes()
  i64 beside;  // what it has beside that: beside_bytes()
  i64 total;
};
template <class Plan>
VQ_HD constexpr i64 beside_bytes(const LinearConfig<Plan>&) {
  return 0;
}
template <class Plan>
VQ_HD constexpr LinearShared shared_layout(const LinearConfig<Plan>& c) {
  LinearShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(x_bytes(c));
  if (carve.next < sums_bytes(c)) carve.next = sums_bytes(c);
  at.beside = carve(beside_bytes(c));
  at.total = carve.next;
  return at;
}

// Workspace bytes that a pre-pass fills from the x of a slot.
template <class Plan>
VQ_HD constexpr i64 handed_of_slot(const LinearConfig<Plan>&) {
  return 0;
}

// The dataflow's own kernel, of blocks that take `shared_bytes`, behind those that `shape` has,
// which hand it handed_of_slot() for each; and the one that combines. Codes are read by whole
// loads.
template <class Plan>
VQ_HD constexpr CallShape call_behind(const LinearConfig<Plan>& c, CallShape shape,
                                      i64 shared_bytes) {
  shape.add({Plan::kName, "", ceil_div(c.out_features, i64{outputs_per_block(c)}), row_blocks(c),
             i64{row_slots(c)} * splits(c), c.threads, shared_bytes, Plan::kAhead, true, 0,
             in_clusters(c) ? splits(c) : 1});
  shape.handed_bytes = row_slots(c) * handed_of_slot(c);
  shape.splits = splits(c);
  shape.counters = counters(c);
  shape.code_bytes = most(code_alignment(c.weights), 4 * c.code_words);
  if (c.in_features % Plan::kXElements == 0) shape.element_bytes = 2 * Plan::kXElements;
  const i64 partials = stores_partials(c) ? i64{splits(c)} * c.total_rows * c.out_features * 4 : 0;
  const i64 used = shape.handed_bytes + partials;
  if (used > 0) shape.workspace_bytes = kCounterBytes + used;
  if (!stores_partials(c) || c.combine != Combine::kernel) return shape;
  shape.add({"linear_combine", "combine",
             ceil_div(c.total_rows * y_columns(c), i64{kCombineThreads}), 1, 1, kCombineThreads, 0,
             false, false});
  return shape;
}
template <class Plan>
VQ_HD constexpr CallShape call_shape(const LinearConfig<Plan>& c) {
  return call_behind(c, CallShape{}, shared_layout(c).total);
}

}  // namespace vq

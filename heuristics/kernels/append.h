// The common part of kv_append's dataflows on the host.
#pragma once

#include "heuristics/kernels/slice.h"

namespace vqgen {

inline int visited_tokens(const KvAppend& op) { return vq::visited_tokens(facts(op)); }
inline bool takes_slots(const KvAppend& op) { return vq::takes_slots(facts(op)); }

// How blocks share the rows.
template <class P>
void judge_rows(Judge& judge, const P& plan, const KvAppend& op) {
  judge.require(plan.tokens_per_block <= visited_tokens(op),
                "tokens_per_block {} is more than the {} {} of a sequence", plan.tokens_per_block,
                visited_tokens(op),
                op.shape.flush_block > 1 ? "tokens that a call visits" : "new tokens");
  judge.require(plan.splits == 1 || !takes_slots(op),
                "splits {}: a call of {} new tokens may put one into a slot of the ring from which "
                "it encodes another, so a row takes one block; set splits to 1, or new_tokens to "
                "at most {}",
                plan.splits, op.shape.new_tokens, most_raw(op.shape));
}

// Refuses more sequences per block than a call has.
template <class P>
void judge_sequences(Judge& judge, const P& plan, const KvAppend& op) {
  judge.require(plan.sequences_per_block <= op.shape.batch,
                "sequences_per_block {} is more than the {} sequences of a call",
                plan.sequences_per_block, op.shape.batch);
}

template <class P>
std::int64_t append_blocks(const P& plan, const KvAppend& op) {
  return call_shape(plan, op).blocks();
}

inline constexpr int kAppendBlocks = 2;  // on an SM, that a grid should have, where it can

// Cuts rows up until there are so many blocks, or none more to be had.
template <class P>
void take_splits(P& plan, const KvAppend& op, std::int64_t wanted) {
  if (takes_slots(op)) return;
  P split = plan;
  for (split.splits = 2; split.splits <= 128 && append_blocks(plan, op) < wanted;
       split.splits *= 2) {
    if (append_blocks(split, op) > append_blocks(plan, op)) plan = split;
  }
}

// Every entry is compared with every sub-vector of its unit, by runs. Keys in parts are counted as
// their first.
template <class Config>
OperandUse append_use(Operand operand, const KvAppend& op, const VqFormat& format,
                      const Config& config, const vq::FormatConfig& kernel_format) {
  const AppendShape& shape = op.shape;
  const int row = row_dim(shape, operand);
  OperandUse use{.operand = operand, .format = kernel_format};
  use.tensor_units = kv_units(format, shape.kv_heads, row);
  if (format.in_parts()) {
    use.parts_bytes = 2 * kv_codebook_elements(format, shape.kv_heads, row);
  }
  const std::int64_t rows = std::int64_t{shape.batch} * visited_tokens(op) * shape.kv_heads;
  const std::int64_t runs =
      vq::sub_vectors(config, kernel_format) / vq::run_sub_vectors(config, kernel_format);
  use.lookups = static_cast<double>(rows * runs) * format.num_codebooks * format.entries();
  use.code_bytes = stored_code_bytes(rows, row, format);
  return use;
}

template <class P>
PlanUse append_plan_use(const P& plan, const KvAppend& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  return {.threads = plan.threads,
          .blocks = shape.blocks(),
          .shared_bytes = shape.main_shared_bytes(),
          .operands = {append_use(Operand::keys, op, op.keys, config, config.keys),
                       append_use(Operand::values, op, op.values, config, config.values)}};
}

}  // namespace vqgen

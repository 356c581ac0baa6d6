// What the dataflows of kv_append have in common on the host.
#pragma once

#include "heuristics/kernels/slice.h"

namespace vqgen {

template <class P>
std::int64_t append_blocks(const P& plan, const KvAppend& op) {
  return call_shape(plan, op).blocks();
}

inline constexpr int kAppendBlocks = 2;  // on an SM, that a grid should have, where it can

// Cuts rows up until there are so many blocks, or none more to be had.
template <class P>
void take_splits(P& plan, const KvAppend& op, std::int64_t wanted) {
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
                      const Config& config, const vq::FormatConfig& of) {
  const AppendShape& shape = op.shape;
  OperandUse use{.operand = operand, .format = of};
  use.tensor_units = kv_units(format, shape.kv_heads, shape.head_dim);
  if (format.in_parts()) {
    use.parts_bytes = 2 * kv_codebook_elements(format, shape.kv_heads, shape.head_dim);
  }
  const std::int64_t rows = std::int64_t{shape.batch} * shape.new_tokens * shape.kv_heads;
  const std::int64_t runs = vq::sub_vectors(config, of) / vq::run_sub_vectors(config, of);
  use.lookups = static_cast<double>(rows * runs) * format.residuals * format.entries();
  use.code_bytes = stored_code_bytes(rows, shape.head_dim, format);
  return use;
}

template <class P>
PlanUse append_plan_use(const P& plan, const KvAppend& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  return {.threads = plan.threads,
          .blocks = shape.blocks(),
          .shared_bytes = shape.shared_bytes(),
          .operands = {append_use(Operand::keys, op, op.keys, config, config.keys),
                       append_use(Operand::values, op, op.values, config, config.values)}};
}

}  // namespace vqgen

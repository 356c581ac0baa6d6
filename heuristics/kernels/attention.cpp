#include "heuristics/kernels/attention.h"

namespace vqgen {

std::vector<PlacementPair> placement_pairs(const AttentionDecode& op, SpacePlacement allowed) {
  const std::vector<Placement> keys = whole_placements(op.keys, allowed);
  const std::vector<Placement> values = whole_placements(op.values, allowed);
  std::vector<PlacementPair> pairs;
  for (std::size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], values[i]);
  if (allowed == SpacePlacement::any) {
    pairs.emplace_back(all_shared(op.keys.entries()), all_global());
    pairs.emplace_back(all_global(), all_shared(op.values.entries()));
  }
  return pairs;
}

OperandUse cache_use(Operand operand, const AttentionDecode& op, const vq::FormatConfig& config,
                     int channels, double head_blocks, double blocks) {
  const AttentionShape& shape = op.shape;
  const VqFormat& format = operand == Operand::keys ? op.keys : op.values;
  OperandUse use{.operand = operand, .format = config};
  use.units = vq::units_of(config, channels);
  use.lane_units = static_cast<int>(use.units);  // lanes stand side by side along a row
  use.tensor_units = kv_units(format, shape.kv_heads, shape.head_dim);
  const double rows = static_cast<double>(shape.kv_heads) * static_cast<double>(shape.tokens);
  use.lookups =
      rows * shape.batch * head_blocks * shape.head_dim / format.vector_size * format.residuals;
  use.fills = blocks * shape.head_dim / channels;
  const int caches = shape.shared_cache ? 1 : shape.batch;
  use.code_bytes =
      stored_code_bytes(shape.tokens, shape.head_dim, format) * shape.kv_heads * caches;
  use.code_reads = head_blocks * shape.batch / caches;
  return use;
}

}  // namespace vqgen

#include "heuristics/placement/plan_use.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace vqgen {
namespace {

double code_bytes(std::int64_t rows, std::int64_t columns, const VqFormat& format) {
  return 4.0 * static_cast<double>(rows) *
         static_cast<double>(
             vq::row_words(columns, format.vector_size, format.residuals, format.index_bits));
}

// `channels` of a head are each block's.
OperandUse cache_use(Operand operand, const AttentionDecode& op, const VqFormat& format,
                     const vq::FormatConfig& config, int channels, double head_blocks,
                     double blocks) {
  const AttentionShape& shape = op.shape;
  OperandUse use{.operand = operand, .format = config};
  use.units = vq::units_of(config, channels);
  use.lane_units = static_cast<int>(use.units);  // lanes stand side by side along a row
  use.tensor_units = kv_units(format, shape.kv_heads, shape.head_dim);
  const double rows = static_cast<double>(shape.kv_heads) * static_cast<double>(shape.tokens);
  use.lookups =
      rows * shape.batch * head_blocks * shape.head_dim / format.vector_size * format.residuals;
  use.fills = blocks * shape.head_dim / channels;
  const int caches = shape.shared_cache ? 1 : shape.batch;
  use.code_bytes = code_bytes(shape.tokens, shape.head_dim, format) * shape.kv_heads * caches;
  use.code_reads = head_blocks * shape.batch / caches;
  return use;
}

PlanUse use_of(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  PlanUse use{.threads = plan.threads, .shared_bytes = vq::block_shared_bytes(config)};
  const int head_blocks = vq::head_blocks(config);
  use.blocks = std::int64_t{plan.splits} * op.shape.kv_heads * head_blocks * op.shape.batch;
  const auto blocks = static_cast<double>(use.blocks);
  use.operands = {cache_use(Operand::keys, op, op.keys, config.keys, vq::key_channels(config),
                            head_blocks, blocks),
                  cache_use(Operand::values, op, op.values, config.values,
                            vq::value_channels(config), head_blocks, blocks)};
  // Of the kernel that has fewer.
  use.blocks *= std::min(config.key_channel_splits, config.value_channel_splits);
  if (plan.dataflow == AttentionDataflow::tables) {  // each entry once, when its table is made
    OperandUse& keys = use.operands.front();
    keys.lookups = blocks * static_cast<double>(keys.units) * op.keys.residuals * op.keys.entries();
  }
  return use;
}

// A block binds the codebooks of other columns at every chunk that begins in them.
std::int64_t fills_a_block(const vq::LinearConfig& config) {
  if (config.unit_columns >= config.in_features) return 1;
  const std::int64_t columns = std::min<std::int64_t>(
      ceil_div(vq::chunks(config), config.splits) * config.chunk_columns, config.in_features);
  return ceil_div(columns, std::max<std::int64_t>(config.chunk_columns, config.unit_columns));
}

PlanUse use_of(const Linear& op, const LinearPlan& plan) {
  const vq::LinearConfig config = kernel_config(op, plan);
  PlanUse use{.threads = plan.threads, .shared_bytes = vq::shared_layout(config).total};
  const std::int64_t row_blocks = ceil_div(op.shape.rows, plan.rows_per_block);
  use.blocks =
      ceil_div(op.shape.out_features, vq::outputs_per_block(config)) * row_blocks * plan.splits;
  OperandUse weights{.operand = Operand::weights, .format = config.weights};
  weights.units = vq::units_per_chunk(config);
  const std::int64_t lane_columns = streams_codes(plan.dataflow)
                                        ? vq::run_columns(config)
                                        : std::int64_t{32} * op.weights.vector_size;
  weights.lane_units =
      static_cast<int>(std::min(weights.units, ceil_div(lane_columns, config.unit_columns)));
  weights.tensor_units = weight_units(op.weights, op.shape.out_features, op.shape.in_features);
  const double elements =
      static_cast<double>(op.shape.out_features) * static_cast<double>(op.shape.in_features);
  const auto reads = static_cast<double>(row_blocks);
  weights.lookups = elements / op.weights.vector_size * op.weights.residuals * reads;
  weights.fills = static_cast<double>(use.blocks) * static_cast<double>(fills_a_block(config));
  weights.code_bytes = code_bytes(op.shape.out_features, op.shape.in_features, op.weights);
  weights.code_reads = reads;
  if (plan.dataflow == LinearDataflow::slices) {  // a stage and a slice a block, in shared memory
    weights.slices = vq::entry_slices(config);
    weights.lookups *= weights.slices;
    weights.code_reads *= config.weights.residuals * weights.slices;
    weights.tensor_units *= config.weights.residuals;
    weights.format.residuals = 1;
    weights.format.placement.shared = vq::entries(config.weights);
  }
  use.operands = {weights};
  return use;
}

// Every entry is compared with every sub-vector of its unit, by runs.
OperandUse append_use(Operand operand, const KvAppend& op, const VqFormat& format,
                      const vq::KvAppendConfig& config, const vq::FormatConfig& of) {
  const AppendShape& shape = op.shape;
  OperandUse use{.operand = operand, .format = of};
  use.tensor_units = kv_units(format, shape.kv_heads, shape.head_dim);
  const std::int64_t rows = std::int64_t{shape.batch} * shape.new_tokens * shape.kv_heads;
  const std::int64_t runs = vq::sub_vectors(config, of) / vq::run_sub_vectors(config, of);
  use.lookups = static_cast<double>(rows * runs) * format.residuals * format.entries();
  use.code_bytes = code_bytes(rows, shape.head_dim, format);
  return use;
}

PlanUse use_of(const KvAppend& op, const KvAppendPlan& plan) {
  const vq::KvAppendConfig config = kernel_config(op, plan);
  PlanUse use{.threads = plan.threads, .shared_bytes = vq::block_shared_bytes(config)};
  use.blocks = std::int64_t{op.shape.batch} * op.shape.kv_heads * vq::token_blocks(config) *
               (vq::shares(config, config.keys) + vq::shares(config, config.values));
  use.operands = {append_use(Operand::keys, op, op.keys, config, config.keys),
                  append_use(Operand::values, op, op.values, config, config.values)};
  return use;
}

}  // namespace

PlanUse plan_use(const Plan& plan, const Problem& problem) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return use_of(*attention, std::get<AttentionDecodePlan>(plan));
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    return use_of(*append, std::get<KvAppendPlan>(plan));
  }
  return use_of(*as_linear(problem), std::get<LinearPlan>(plan));
}

Placement& placement_of(Plan& plan, Operand operand) {
  if (auto* attention = std::get_if<AttentionDecodePlan>(&plan)) {
    return operand == Operand::keys ? attention->key_codebook : attention->value_codebook;
  }
  return std::get<LinearPlan>(plan).codebook;
}

}  // namespace vqgen

#include "core/kernel_config.h"

#include "core/ceil_div.h"

namespace vqgen {
namespace {

vq::FormatConfig format_config(const VqFormat& format, const Placement& placement) {
  vq::FormatConfig config{};
  config.decoder = format.decoder == Decoder::e8p ? vq::Decoder::kE8p : vq::Decoder::kTable;
  config.vector_size = format.vector_size;
  config.index_bits = format.index_bits;
  config.residuals = format.residuals;
  config.layout = kernel_layout(format.layout);
  config.int8_entries = format.entry_type == EntryType::int8;
  config.stage_scales = format.stage_scales;
  config.smooth = format.smooth;
  config.hadamard = format.hadamard;
  config.placement = {placement.registers, placement.replicated, placement.copies,
                      placement.shared};
  return config;
}

vq::FormatConfig cache_format(const VqFormat& format, const Placement& placement, int head_dim) {
  vq::FormatConfig config = format_config(format, placement);
  const bool grouped = format.scope == Scope::channel_group;
  config.per_head = format.scope != Scope::tensor;
  config.unit_elements = grouped ? format.channels_per_group() : head_dim;
  return config;
}

vq::Element element(DType dtype) {
  return dtype == DType::f16 ? vq::Element::kF16 : vq::Element::kBF16;
}

}  // namespace

vq::AttentionDecodeConfig kernel_config(const AttentionDecode& op,
                                        const AttentionDecodePlan& plan) {
  vq::AttentionDecodeConfig config{};
  config.element = element(op.dtype);
  config.dataflow = static_cast<vq::AttentionDataflow>(plan.dataflow);
  config.head_dim = op.shape.head_dim;
  config.query_heads = op.shape.query_heads;
  config.kv_heads = op.shape.kv_heads;
  config.max_window = op.shape.window;
  config.max_sinks = op.shape.sinks;
  config.threads = plan.threads;
  config.tile_tokens = plan.tile_tokens;
  config.splits = plan.splits;
  config.combine = static_cast<vq::Combine>(plan.combine);
  config.heads_per_block = plan.heads_per_block;
  config.lanes_per_token = plan.lanes_per_token;
  config.stages = plan.stages;
  config.code_words = plan.code_words;
  config.table_bits = plan.table_bits;
  const bool channels = plan.dataflow == AttentionDataflow::channels;
  config.key_channel_splits = channels ? plan.key_channel_splits : 1;
  config.value_channel_splits = channels ? plan.value_channel_splits : 1;
  config.keys = cache_format(op.keys, plan.key_codebook, op.shape.head_dim);
  config.values = cache_format(op.values, plan.value_codebook, op.shape.head_dim);
  return config;
}

static_assert(static_cast<int>(LinearDataflow::fragments) ==
                  static_cast<int>(vq::LinearDataflow::kFragments) &&
              static_cast<int>(LinearDataflow::tables) ==
                  static_cast<int>(vq::LinearDataflow::kTables) &&
              static_cast<int>(LinearDataflow::warpgroups) ==
                  static_cast<int>(vq::LinearDataflow::kWarpgroups) &&
              static_cast<int>(LinearDataflow::slices) ==
                  static_cast<int>(vq::LinearDataflow::kSlices));
static_assert(static_cast<int>(Combine::last_block) == static_cast<int>(vq::Combine::kLastBlock));
static_assert(static_cast<int>(LinearFusion::registers) ==
                  static_cast<int>(vq::LinearFusion::kRegisters) &&
              static_cast<int>(LinearFusion::shared) ==
                  static_cast<int>(vq::LinearFusion::kShared));

vq::LinearConfig kernel_config(const Linear& op, const LinearPlan& plan) {
  const VqFormat& format = op.weights;
  vq::LinearConfig config{};
  config.element = element(op.dtype);
  config.rows = op.shape.rows;
  config.out_features = op.shape.out_features;
  config.in_features = op.shape.in_features;
  config.dataflow = static_cast<vq::LinearDataflow>(plan.dataflow);
  config.threads = plan.threads;
  config.splits = plan.splits;
  config.combine = static_cast<vq::Combine>(plan.combine);
  config.warps_along_columns =
      plan.dataflow == LinearDataflow::fragments ? plan.warps_along_columns : 1;
  config.rows_per_block = plan.rows_per_block;
  // Warp groups have one form of a product.
  const bool grouped = plan.dataflow == LinearDataflow::warpgroups;
  config.fragment_rows = grouped ? 8 : plan.fragment_rows;
  config.fusion = grouped ? vq::LinearFusion::kPermute : static_cast<vq::LinearFusion>(plan.fusion);
  config.code_words = plan.code_words;
  config.idle_warps = grouped ? plan.idle_warps : 0;
  config.steps_ahead = grouped ? plan.steps_ahead : 0;
  config.outputs_per_warp = plan.outputs_per_warp;
  config.chunk_columns = plan.chunk_columns;
  config.output_scales = format.output_scales;
  config.unit_rows = format.scope == Scope::tile ? format.tile_rows : op.shape.out_features;
  config.unit_columns = format.scope == Scope::tile            ? format.tile_columns
                        : format.scope == Scope::channel_group ? format.channels_per_group()
                                                               : op.shape.in_features;
  config.weights = format_config(format, plan.codebook);
  return config;
}

vq::KvAppendConfig kernel_config(const KvAppend& op, const KvAppendPlan& plan) {
  vq::KvAppendConfig config{};
  config.element = element(op.dtype);
  config.head_dim = op.shape.head_dim;
  config.kv_heads = op.shape.kv_heads;
  config.new_tokens = op.shape.new_tokens;
  config.max_window = op.shape.window;
  config.max_sinks = op.shape.sinks;
  config.threads = plan.threads;
  config.splits = plan.splits;
  config.tokens_per_block = plan.tokens_per_block;
  config.warps_along_entries = plan.warps_along_entries;
  while (plan.threads / 32 % config.warps_along_entries != 0) config.warps_along_entries /= 2;
  config.sub_vectors_per_warp = plan.sub_vectors_per_warp;
  config.keys = cache_format(op.keys, all_global(), op.shape.head_dim);
  config.values = cache_format(op.values, all_global(), op.shape.head_dim);
  return config;
}

std::int64_t score_bytes(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  if (plan.dataflow != AttentionDataflow::channels) return 0;
  const std::int64_t bytes = std::int64_t{op.shape.batch} * op.shape.query_heads *
                             plan.key_channel_splits * op.shape.tokens * 4;
  return ceil_div(bytes, 16) * 16;
}

std::int64_t workspace_bytes(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  const std::int64_t scores = score_bytes(op, plan);
  if (plan.splits == 1) return scores == 0 ? 0 : vq::kCounterBytes + scores;
  return vq::kCounterBytes + scores +
         std::int64_t{op.shape.batch} * op.shape.query_heads * plan.splits *
             (op.shape.head_dim + 2) * 4;
}

std::int64_t workspace_bytes(const Linear& op, const LinearPlan& plan) {
  if (plan.splits == 1) return 0;
  return vq::kCounterBytes + std::int64_t{plan.splits} * op.shape.rows * op.shape.out_features * 4;
}

std::int64_t workspace_bytes(const KvAppend&, const KvAppendPlan&) { return 0; }

std::int64_t workspace_bytes(const Problem& problem, const Plan& plan) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return workspace_bytes(*attention, std::get<AttentionDecodePlan>(plan));
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    return workspace_bytes(*append, std::get<KvAppendPlan>(plan));
  }
  return workspace_bytes(*as_linear(problem), std::get<LinearPlan>(plan));
}

}  // namespace vqgen

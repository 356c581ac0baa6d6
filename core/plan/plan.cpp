#include "core/plan/plan.h"

#include <fmt/format.h>

namespace vqgen {
namespace {

vq::FormatConfig format_facts(const VqFormat& format) {
  vq::FormatConfig facts{};
  facts.decoder = format.decoder;
  facts.vector_size = format.vector_size;
  facts.index_bits = format.index_bits;
  facts.num_codebooks = format.num_codebooks;
  facts.layout = format.layout;
  facts.int8_entries = format.entry_type == EntryType::int8;
  facts.stage_scales = format.stage_scales;
  facts.smooth = format.smooth;
  facts.hadamard = format.hadamard;
  facts.token_scales = format.token_scales;
  facts.scale_tokens = format.group_tokens;
  facts.group_inputs = format.group_inputs;
  facts.group_scale_bits = format.group_scale_bits;
  facts.group_minima = format.group_minima;
  return facts;
}

vq::FormatConfig cache_facts(const VqFormat& format, int head_dim) {
  vq::FormatConfig facts = format_facts(format);
  facts.per_head = format.scope != Scope::tensor;
  facts.unit_elements =
      format.scope == Scope::channel_group ? format.channels_per_group() : head_dim;
  if (format.token_scales) facts.scale_channels = static_cast<int>(format.scale_channels(head_dim));
  return facts;
}

vq::Parts part_facts(const VqFormat& format) {
  vq::Parts facts{};
  int place = 0;
  for (const VqFormat& part : format.parts) {
    const auto channels = static_cast<int>(part.channels.size());
    facts.channels[facts.count] = channels;
    facts.formats[facts.count++] = cache_facts(part, channels);
    for (const int channel : part.channels) {
      facts.channel[place++] = static_cast<vq::u8>(channel);
    }
  }
  return facts;
}

// One matrix, of which a kernel makes no product: with no rows of x.
vq::LinearProblem weight_facts(const VqFormat& format, DType dtype, std::int64_t out_features,
                               std::int64_t in_features) {
  const bool tiles = format.scope == Scope::tile;
  vq::LinearProblem facts{};
  facts.element = dtype;
  facts.out_features = out_features;
  facts.in_features = in_features;
  facts.output_scales = format.output_scales;
  facts.unit_rows = tiles ? format.tile_rows : out_features;
  facts.unit_columns = tiles                                  ? format.tile_columns
                       : format.scope == Scope::channel_group ? format.channels_per_group()
                                                              : in_features;
  facts.weights = format_facts(format);
  return facts;
}

vq::Basis basis_facts(const VqFormat& format) { return {format.center, format.klt}; }

}  // namespace

std::string_view kernel_name(const Plan& plan) {
  return std::visit([](const auto& each) { return std::string_view(each.kName); }, plan);
}

std::string_view dataflow_name(const Plan& plan) {
  const std::string_view name = kernel_name(plan);
  return name.substr(name.find('_') + 1);
}

std::string short_name(const Placement& placement, int entries) {
  std::string name;
  int reached = placement.registers;
  if (placement.registers > 0) name += fmt::format("r{}", placement.registers);
  if (placement.replicated > reached) {
    reached = placement.replicated;
    name += fmt::format("c{}", placement.copies);
    if (reached < entries) name += fmt::format("x{}", reached);
  }
  if (placement.shared > reached) {
    reached = placement.shared;
    name += "s";
    if (reached < entries) name += std::to_string(reached);
  }
  return reached < entries ? name + "g" : name;
}

Placement* placement_of(Plan& plan, Operand operand) {
  const std::string_view wanted = operand == Operand::keys     ? "key_codebook"
                                  : operand == Operand::values ? "value_codebook"
                                                               : "codebook";
  Placement* found = nullptr;
  std::visit(
      [&]<class P>(P& each) {
        for_each_field<P>([&](const auto& field) {
          if constexpr (std::is_same_v<decltype(field.member), Placement P::*>) {
            if (field.name == wanted) found = &(each.*field.member);
          }
        });
      },
      plan);
  return found;
}
const Placement* placement_of(const Plan& plan, Operand operand) {
  return placement_of(const_cast<Plan&>(plan), operand);  // which only looks
}

vq::AttentionProblem facts(const AttentionDecode& op) {
  return {op.dtype,
          op.shape.head_dim,
          op.shape.value_dim(),
          op.shape.query_heads,
          op.shape.kv_heads,
          op.shape.recent_tokens,
          op.shape.flush_block,
          op.shape.sinks,
          op.shape.page_tokens,
          op.shape.raw_page_tokens,
          op.shape.query_tokens,
          op.shape.batch_invariant,
          op.shape.sliding_window,
          op.shape.attention_chunk,
          op.shape.logit_softcap > 0,
          op.shape.sink_logits,
          op.shape.tree_mask,
          op.shape.shared_prefix,
          cache_facts(op.keys, op.shape.head_dim),
          cache_facts(op.values, op.shape.value_dim()),
          part_facts(op.keys),
          part_facts(op.values),
          basis_facts(op.keys),
          basis_facts(op.values)};
}

vq::LinearProblem facts(const Linear& op) {
  vq::LinearProblem facts =
      weight_facts(op.weights, op.dtype, op.shape.out_features, op.shape.in_features);
  facts.rows = op.shape.rows;
  facts.experts = op.shape.experts;
  facts.total_rows = op.shape.call_rows();
  facts.epilogue = {op.shape.gate == Gate::none ? 0 : op.shape.gate_rows, op.shape.multiplier != 1,
                    op.shape.residual};
  return facts;
}

vq::WeightRowsProblem facts(const WeightDequantize& op) {
  return {weight_facts(op.weights, op.dtype, op.shape.out_features, op.shape.in_features),
          op.weights.sums_are_bytes()};
}

vq::AppendProblem facts(const KvAppend& op) {
  return {op.dtype,
          op.shape.head_dim,
          op.shape.value_dim(),
          op.shape.kv_heads,
          op.shape.new_tokens,
          op.shape.recent_tokens,
          op.shape.flush_block,
          op.shape.sinks,
          op.shape.page_tokens,
          op.shape.raw_page_tokens,
          cache_facts(op.keys, op.shape.head_dim),
          cache_facts(op.values, op.shape.value_dim()),
          part_facts(op.keys),
          part_facts(op.values),
          basis_facts(op.keys),
          basis_facts(op.values)};
}

vq::DequantizeProblem facts(const KvDequantize& op) {
  return {op.dtype,
          op.shape.head_dim,
          op.shape.value_dim(),
          op.shape.kv_heads,
          op.shape.recent_tokens,
          op.shape.flush_block,
          op.shape.sinks,
          op.shape.page_tokens,
          op.shape.raw_page_tokens,
          cache_facts(op.keys, op.shape.head_dim),
          cache_facts(op.values, op.shape.value_dim()),
          part_facts(op.keys),
          part_facts(op.values),
          basis_facts(op.keys),
          basis_facts(op.values)};
}

vq::MergeProblem facts(const AttentionMerge& op) {
  return {op.dtype, op.shape.head_dim, op.shape.heads, op.shape.parts};
}

vq::ScalarProblem facts(const ScalarMatrix& op) {
  return {op.dtype, op.shape.channels, op.decodes, op.shape.scales == Scales::computed};
}

vq::CallShape call_shape(const Plan& plan, const Problem& problem) {
  return visit_plan(plan, problem,
                    [](const auto& each, const auto& op) { return call_shape(each, op); });
}

}  // namespace vqgen

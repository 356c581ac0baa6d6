#include "core/plan/plan.h"

namespace vqgen {
namespace {

vq::FormatConfig format_facts(const VqFormat& format) {
  vq::FormatConfig facts{};
  facts.decoder = format.decoder;
  facts.vector_size = format.vector_size;
  facts.index_bits = format.index_bits;
  facts.residuals = format.residuals;
  facts.layout = format.layout;
  facts.int8_entries = format.entry_type == EntryType::int8;
  facts.stage_scales = format.stage_scales;
  facts.smooth = format.smooth;
  facts.hadamard = format.hadamard;
  return facts;
}

vq::FormatConfig cache_facts(const VqFormat& format, int head_dim) {
  vq::FormatConfig facts = format_facts(format);
  facts.per_head = format.scope != Scope::tensor;
  facts.unit_elements =
      format.scope == Scope::channel_group ? format.channels_per_group() : head_dim;
  return facts;
}

template <class Plan>
auto placement_in(Plan& plan, Operand operand) {
  using Pointer = std::conditional_t<std::is_const_v<Plan>, const Placement*, Placement*>;
  return std::visit(
      [&](auto& each) {
        Pointer found = nullptr;
        std::remove_cvref_t<decltype(each)>::visit(
            [&]<class P, class Member>(std::string_view name, Member P::*member, vq::Range,
                                       const char*) {
              if constexpr (std::is_same_v<Member, Placement>) {
                const std::string_view wanted = operand == Operand::keys     ? "key_codebook"
                                                : operand == Operand::values ? "value_codebook"
                                                                             : "codebook";
                if (name == wanted) found = &(each.*member);
              }
            });
        return found;
      },
      plan);
}

}  // namespace

std::string_view kernel_name(const Plan& plan) {
  return std::visit([](const auto& each) { return std::string_view(each.kName); }, plan);
}

std::string_view dataflow_name(const Plan& plan) {
  const std::string_view name = kernel_name(plan);
  return name.substr(name.find('_') + 1);
}

Placement* placement_of(Plan& plan, Operand operand) { return placement_in(plan, operand); }
const Placement* placement_of(const Plan& plan, Operand operand) {
  return placement_in(plan, operand);
}

vq::AttentionProblem facts(const AttentionDecode& op) {
  return {op.dtype,
          op.shape.head_dim,
          op.shape.query_heads,
          op.shape.kv_heads,
          op.shape.window,
          op.shape.sinks,
          cache_facts(op.keys, op.shape.head_dim),
          cache_facts(op.values, op.shape.head_dim)};
}

vq::LinearProblem facts(const Linear& op) {
  const VqFormat& format = op.weights;
  const bool tiles = format.scope == Scope::tile;
  return {op.dtype,
          op.shape.rows,
          op.shape.out_features,
          op.shape.in_features,
          format.output_scales,
          tiles ? format.tile_rows : op.shape.out_features,
          tiles                                  ? format.tile_columns
          : format.scope == Scope::channel_group ? format.channels_per_group()
                                                 : op.shape.in_features,
          format_facts(format)};
}

vq::AppendProblem facts(const KvAppend& op) {
  return {op.dtype,
          op.shape.head_dim,
          op.shape.kv_heads,
          op.shape.new_tokens,
          op.shape.window,
          op.shape.sinks,
          cache_facts(op.keys, op.shape.head_dim),
          cache_facts(op.values, op.shape.head_dim)};
}

vq::CallShape call_shape(const Plan& plan, const Problem& problem) {
  return visit_plan(plan, problem,
                    [](const auto& each, const auto& op) { return call_shape(each, op); });
}

}  // namespace vqgen

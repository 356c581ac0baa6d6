#include "heuristics/shape_line.h"

#include <fmt/format.h>

namespace vqgen {
namespace {

std::string pages_text(int page_tokens) {
  return page_tokens > 0 ? fmt::format(" in pages of {}", page_tokens) : "";
}

std::string batches_text(int flush_block) {
  return flush_block > 1 ? fmt::format(", which leave the window {} at a time", flush_block) : "";
}

std::string seen_text(const AttentionShape& s) {
  std::string text;
  if (s.sliding_window > 0) text += fmt::format(", of which the newest {} count", s.sliding_window);
  if (s.attention_chunk > 0) text += fmt::format(", in chunks of {}", s.attention_chunk);
  if (s.logit_softcap > 0) text += fmt::format(", scores within {}", s.logit_softcap);
  if (s.sink_logits) text += ", with sink logits";
  if (s.tree_mask) text += ", drafts in a tree";
  if (s.shared_prefix) text += ", all of which see all tokens";
  return text;
}

template <class Shape>
std::string channels_text(const Shape& shape) {
  if (shape.value_dim() == shape.head_dim) return fmt::format("{} channels", shape.head_dim);
  return fmt::format("{} channels, values of {}", shape.head_dim, shape.value_dim());
}

}  // namespace

std::string epilogue_text(const LinearShape& s) {
  std::string text;
  if (s.gate != Gate::none) {
    text += fmt::format(", of which half are gate rows, in runs of {}, for {}", s.gate_rows,
                        enum_name(s.gate));
  }
  if (s.multiplier != 1) text += fmt::format(", times {}", s.multiplier);
  if (s.residual) text += ", plus a residual";
  return text;
}

std::string shape_line(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    const AttentionShape& s = op->shape;
    return fmt::format(
        "attention_decode in {}: {} sequences of up to {} tokens{}{}{}{}{}, {} query heads "
        "on {} KV heads of {}",
        enum_name(op->dtype), s.batch, s.tokens, pages_text(s.page_tokens),
        batches_text(s.flush_block),
        s.query_tokens > 1 ? fmt::format(", up to {} query tokens of each", s.query_tokens) : "",
        s.batch_invariant ? ", results independent of each other" : "", seen_text(s), s.query_heads,
        s.kv_heads, channels_text(s));
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    const AppendShape& s = op->shape;
    return fmt::format(
        "kv_append in {}: up to {} new tokens of each of {} sequences{}{}, {} KV heads of {}",
        enum_name(op->dtype), s.new_tokens, s.batch, pages_text(s.page_tokens),
        batches_text(s.flush_block), s.kv_heads, channels_text(s));
  }
  if (const auto* op = std::get_if<KvDequantize>(&problem)) {
    const DequantizeShape& s = op->shape;
    return fmt::format(
        "kv_dequantize in {}: up to {} tokens of each of {} sequences{}{}, {} KV heads of {}",
        enum_name(op->dtype), s.tokens, s.batch, pages_text(s.page_tokens),
        batches_text(s.flush_block), s.kv_heads, channels_text(s));
  }
  if (const auto* op = std::get_if<AttentionMerge>(&problem)) {
    const MergeShape& s = op->shape;
    return fmt::format(
        "attention_merge in {}: {} results of up to {} query tokens, {} heads of {} channels, "
        "become one",
        enum_name(op->dtype), s.parts, s.rows, s.heads, s.head_dim);
  }
  if (const ScalarMatrix* op = as_scalar(problem)) {
    return fmt::format("{} in {}: up to {} tokens of {} channels, scales {}", op_name(problem),
                       enum_name(op->dtype), op->shape.tokens, op->shape.channels,
                       enum_name(op->shape.scales));
  }
  if (const auto* op = std::get_if<WeightDequantize>(&problem)) {
    const WeightRowsShape& s = op->shape;
    return fmt::format(
        "weight_dequantize in {}: up to {} rows of a matrix of {} outputs and {} inputs",
        enum_name(op->dtype), s.rows, s.out_features, s.in_features);
  }
  const Linear& op = *as_linear(problem);
  if (op.shape.grouped()) {
    return fmt::format(
        "{} in {}: up to {} rows of x, up to {} of each of {} experts' matrices of {} outputs and "
        "{} inputs{}",
        op_name(problem), enum_name(op.dtype), op.shape.call_rows(), op.shape.rows,
        op.shape.experts, op.shape.out_features, op.shape.in_features, epilogue_text(op.shape));
  }
  return fmt::format("{} in {}: {} rows of x by a matrix of {} outputs and {} inputs{}",
                     op_name(problem), enum_name(op.dtype), op.shape.rows, op.shape.out_features,
                     op.shape.in_features, epilogue_text(op.shape));
}

}  // namespace vqgen

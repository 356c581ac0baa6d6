// Plan: every decision the generator needs and nothing that it can work out. A variant of one
// struct for each dataflow (templates/vq/kernels/*/plan.h), with the fields of that dataflow alone:
// equal kernels have equal plans. A plain value: part of the cache key, a line of a log, the name
// of a test. This is the one list of dataflows.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_dequantize.h>
#include <vq/args/linear.h>
#include <vq/args/scalar_matrix.h>
#include <vq/args/weight_dequantize.h>
#include <vq/kernels/append_gemm/plan.h>
#include <vq/kernels/append_mma/plan.h>
#include <vq/kernels/append_simt/plan.h>
#include <vq/kernels/attention_channels/plan.h>
#include <vq/kernels/attention_histogram/plan.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/kernels/attention_lut/plan.h>
#include <vq/kernels/attention_mma/plan.h>
#include <vq/kernels/attention_simt/plan.h>
#include <vq/kernels/dequantize_simt/plan.h>
#include <vq/kernels/linear_int8_mma/plan.h>
#include <vq/kernels/linear_int8_wgmma/plan.h>
#include <vq/kernels/linear_lut/plan.h>
#include <vq/kernels/linear_mma/plan.h>
#include <vq/kernels/linear_simt/plan.h>
#include <vq/kernels/linear_sliced_codebook/plan.h>
#include <vq/kernels/linear_wgmma/plan.h>
#include <vq/kernels/linear_wgmma_large_m/plan.h>
#include <vq/kernels/merge_simt/plan.h>
#include <vq/kernels/scalar_forms/plan.h>
#include <vq/kernels/weights_simt/plan.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/problem/problem.h"

namespace vqgen {

// The entries of each codebook at each level, hot entries first (VQ-LLM V).
using vq::Placement;

inline Placement all_global() { return {}; }
inline Placement all_shared(int entries) { return {.shared = entries}; }
inline Placement all_replicated(int entries, int copies) {
  return {.replicated = entries, .copies = copies};
}

// "g", "s", "r8c16x64s128": what kernel names call a placement of codebooks of `entries`. Levels
// that are empty are left out, and "s" alone says that all entries are shared.
std::string short_name(const Placement& placement, int entries);

using vq::AppendGemm;
using vq::AppendMma;
using vq::AppendSimt;
using vq::AttentionChannels;
using vq::AttentionHistogram;
using vq::AttentionInt8Mma;
using vq::AttentionLut;
using vq::AttentionMma;
using vq::AttentionSimt;
using vq::Combine;
using vq::DequantizeSimt;
using vq::LinearFusion;
using vq::LinearInt8Mma;
using vq::LinearInt8Wgmma;
using vq::LinearLut;
using vq::LinearMma;
using vq::LinearSimt;
using vq::LinearSlicedCodebook;
using vq::LinearWgmma;
using vq::LinearWgmmaLargeM;
using vq::MergeSimt;
using vq::ScalarForm;
using vq::ScalarForms;
using vq::Schedule;
using vq::WeightsSimt;

using Plan = std::variant<AttentionSimt, AttentionMma, AttentionLut, AttentionChannels,
                          AttentionInt8Mma, AttentionHistogram, LinearSimt, LinearMma, LinearLut,
                          LinearWgmma, LinearSlicedCodebook, LinearInt8Mma, LinearInt8Wgmma,
                          LinearWgmmaLargeM, AppendSimt, AppendMma, AppendGemm, DequantizeSimt,
                          MergeSimt, ScalarForms, WeightsSimt>;
inline constexpr std::size_t kDataflows = std::variant_size_v<Plan>;

// The op that a dataflow does: AttentionDecode, KvAppend, KvDequantize, AttentionMerge,
// WeightDequantize; Linear, which Gemv and Gemm both are; or ScalarMatrix, which Int8Quantize and
// Int8Dequantize are.
template <class P>
using OpOf = std::conditional_t<
    std::string_view(P::kName).starts_with("attention_"), AttentionDecode,
    std::conditional_t<
        std::string_view(P::kName).starts_with("linear_"), Linear,
        std::conditional_t<
            std::string_view(P::kName).starts_with("append_"), KvAppend,
            std::conditional_t<
                std::is_same_v<P, DequantizeSimt>, KvDequantize,
                std::conditional_t<std::is_same_v<P, MergeSimt>, AttentionMerge,
                                   std::conditional_t<std::is_same_v<P, WeightsSimt>,
                                                      WeightDequantize, ScalarMatrix>>>>>>;

// The op of a problem that the dataflow does; null where it does another.
template <class P>
const OpOf<P>* op_of(const Problem& problem) {
  if constexpr (std::is_same_v<OpOf<P>, Linear>)
    return as_linear(problem);
  else if constexpr (std::is_same_v<OpOf<P>, ScalarMatrix>)
    return as_scalar(problem);
  else
    return std::get_if<OpOf<P>>(&problem);
}

// The arguments that an op's kernels take.
template <class Op>
using ArgsOf = std::conditional_t<
    std::is_same_v<Op, AttentionDecode>, vq::AttentionDecodeArgs,
    std::conditional_t<
        std::is_base_of_v<Linear, Op>, vq::LinearArgs,
        std::conditional_t<
            std::is_same_v<Op, KvAppend>, vq::KvAppendArgs,
            std::conditional_t<
                std::is_same_v<Op, KvDequantize>, vq::KvDequantizeArgs,
                std::conditional_t<
                    std::is_same_v<Op, AttentionMerge>, vq::AttentionMergeArgs,
                    std::conditional_t<std::is_same_v<Op, WeightDequantize>,
                                       vq::WeightDequantizeArgs, vq::ScalarMatrixArgs>>>>>>;

// True if the plan's dataflow implements the problem's op.
inline bool is_plan_of(const Plan& plan, const Problem& problem) {
  return std::visit([&]<class P>(const P&) { return op_of<P>(problem) != nullptr; }, plan);
}

// visit(plan's own struct, its op). Requires is_plan_of().
template <class Visit>
decltype(auto) visit_plan(const Plan& plan, const Problem& problem, Visit&& visit) {
  return std::visit(
      [&]<class P>(const P& each) -> decltype(auto) { return visit(each, *op_of<P>(problem)); },
      plan);
}

// visit(a default plan) for each dataflow, in the order of the list.
template <class Visit>
void for_each_dataflow(Visit&& visit) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (visit(std::variant_alternative_t<kIndex, Plan>{}), ...);
  }
  (std::make_index_sequence<kDataflows>{});
}

// "linear_lut", and "lut".
std::string_view kernel_name(const Plan& plan);
std::string_view dataflow_name(const Plan& plan);

// The boundaries of one operand's codebooks; null where the dataflow places none.
Placement* placement_of(Plan& plan, Operand operand);
const Placement* placement_of(const Plan& plan, Operand operand);

// The problem as the compile-time facts that device code takes.
vq::AttentionProblem facts(const AttentionDecode& op);
vq::LinearProblem facts(const Linear& op);
vq::AppendProblem facts(const KvAppend& op);
vq::DequantizeProblem facts(const KvDequantize& op);
vq::MergeProblem facts(const AttentionMerge& op);
vq::ScalarProblem facts(const ScalarMatrix& op);
vq::WeightRowsProblem facts(const WeightDequantize& op);

// Facts and plan side by side.
template <class P>
auto configured(const P& plan, const OpOf<P>& op) {
  return vq::configure(facts(op), plan);
}

// GPU resources of a call: grids, threads, shared memory, workspace, alignment. Requires a plan
// whose fields are in range.
template <class P>
vq::CallShape call_shape(const P& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  vq::CallShape shape = call_shape(config, op.shape.batch, op.shape.tokens);
  add_basis(shape, config, op.shape.batch);
  return shape;
}
template <class P>
vq::CallShape call_shape(const P& plan, const Linear& op) {
  return call_shape(configured(plan, op));
}
template <class P>
vq::CallShape call_shape(const P& plan, const KvAppend& op) {
  vq::CallShape shape = call_shape(configured(plan, op), op.shape.batch);
  add_basis(shape, facts(op), op.shape.batch);
  return shape;
}
template <class P>
vq::CallShape call_shape(const P& plan, const KvDequantize& op) {
  vq::CallShape shape = call_shape(configured(plan, op), op.shape.batch, op.shape.tokens);
  add_basis(shape, facts(op), op.shape.batch, op.shape.tokens);
  return shape;
}
template <class P>
vq::CallShape call_shape(const P& plan, const AttentionMerge& op) {
  return call_shape(configured(plan, op), op.shape.rows);
}
template <class P>
vq::CallShape call_shape(const P& plan, const ScalarMatrix& op) {
  return call_shape(configured(plan, op), op.shape.tokens);
}
template <class P>
vq::CallShape call_shape(const P& plan, const WeightDequantize& op) {
  return call_shape(configured(plan, op), op.shape.rows);
}
vq::CallShape call_shape(const Plan& plan, const Problem& problem);

}  // namespace vqgen

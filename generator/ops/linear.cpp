#include <fmt/format.h>

#include <vq/args/linear.h>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "generator/ops/ops.h"
#include "generator/text.h"

namespace vqgen {
namespace {

std::string plan_text(const vq::LinearConfig& c) {
  ConfigPrinter printer("vq::LinearConfig");
  printer.add("element", c.element)
      .add("dataflow", c.dataflow)
      .add("rows", std::int64_t{c.rows})
      .add("out_features", std::int64_t{c.out_features})
      .add("in_features", std::int64_t{c.in_features})
      .add("threads", std::int64_t{c.threads})
      .add("outputs_per_warp", std::int64_t{c.outputs_per_warp})
      .add("chunk_columns", std::int64_t{c.chunk_columns})
      .add("splits", std::int64_t{c.splits})
      .add("combine", c.combine)
      .add("warps_along_columns", std::int64_t{c.warps_along_columns})
      .add("rows_per_block", std::int64_t{c.rows_per_block})
      .add("fragment_rows", std::int64_t{c.fragment_rows})
      .add("fusion", c.fusion)
      .add("code_words", std::int64_t{c.code_words})
      .add("idle_warps", std::int64_t{c.idle_warps})
      .add("steps_ahead", std::int64_t{c.steps_ahead})
      .add("output_scales", c.output_scales)
      .add("unit_rows", std::int64_t{c.unit_rows})
      .add("unit_columns", std::int64_t{c.unit_columns})
      .add("weights", c.weights);
  return std::move(printer).finish();
}

// "d8b8x2_f16_r1_o14336i4096_fragments_c1024_s4_w8k2_c16": format, element type, rows, outputs and
// inputs, dataflow and a fusion that is not the usual one, chunk, splits ("s4l": merged by the last
// block), warps and those along the columns, placement.
std::string suffix(const Linear& op, const LinearPlan& plan) {
  const bool fused =
      plan.dataflow == LinearDataflow::fragments && plan.fusion != LinearFusion::permute;
  const std::string fusion = fused ? fmt::format("_{}", enum_name(plan.fusion)) : "";
  return fmt::format("{}_{}_r{}_o{}i{}_{}{}_c{}_s{}{}_w{}k{}_{}", short_name(op.weights),
                     enum_name(op.dtype), op.shape.rows, op.shape.out_features,
                     op.shape.in_features, enum_name(plan.dataflow), fusion, plan.chunk_columns,
                     plan.splits, plan.combine == Combine::last_block ? "l" : "", plan.threads / 32,
                     plan.warps_along_columns, short_name(plan.codebook, op.weights.entries()));
}

unsigned blocks(std::int64_t items, std::int64_t a_block) {
  return static_cast<unsigned>(ceil_div(items, a_block));
}

}  // namespace

OpText op_text(const char* name, const Linear& op, const LinearPlan& plan) {
  const vq::LinearConfig config = kernel_config(op, plan);
  KernelEntry entry;
  entry.name = fmt::format("{}_{}", name, suffix(op, plan));
  entry.grid = {blocks(op.shape.out_features, vq::outputs_per_block(config)),
                blocks(op.shape.rows, plan.rows_per_block), static_cast<unsigned>(plan.splits)};
  entry.threads = static_cast<unsigned>(plan.threads);
  entry.shared_bytes = vq::shared_layout(config).total;
  const std::string function = fmt::format("linear_{}", enum_name(plan.dataflow));
  OpText text;
  text.templates = {fmt::format("vq/ops/{}.cuh", function)};
  text.plan = plan_text(config);
  text.kernels =
      kernel_entry(entry, "LinearArgs", function, plan.dataflow != LinearDataflow::lanes);
  text.entries = {entry};
  if (plan.splits > 1 && plan.combine == Combine::kernel) {
    KernelEntry combine;
    combine.name = fmt::format("{}_combine_{}", name, suffix(op, plan));
    combine.grid = {blocks(op.shape.rows * op.shape.out_features, vq::kCombineThreads), 1, 1};
    combine.threads = vq::kCombineThreads;
    text.templates.emplace_back("vq/ops/linear_combine.cuh");
    text.kernels += kernel_entry(combine, "LinearArgs", "linear_combine");
    text.entries.push_back(combine);
  }
  text.args_bytes = sizeof(vq::LinearArgs);
  return text;
}

}  // namespace vqgen

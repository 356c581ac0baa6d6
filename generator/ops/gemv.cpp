#include <fmt/format.h>

#include <vq/args/gemv.h>

#include "core/kernel_config.h"
#include "generator/ops/ops.h"
#include "generator/text.h"

namespace vqgen {
namespace {

std::string plan_text(const vq::GemvConfig& c) {
  ConfigPrinter printer("vq::GemvConfig");
  printer.add("element", c.element)
      .add("rows", std::int64_t{c.rows})
      .add("out_features", std::int64_t{c.out_features})
      .add("in_features", std::int64_t{c.in_features})
      .add("threads", std::int64_t{c.threads})
      .add("outputs_per_warp", std::int64_t{c.outputs_per_warp})
      .add("chunk_columns", std::int64_t{c.chunk_columns})
      .add("output_scales", c.output_scales)
      .add("unit_rows", std::int64_t{c.unit_rows})
      .add("unit_columns", std::int64_t{c.unit_columns})
      .add("weights", c.weights);
  return std::move(printer).finish();
}

}  // namespace

OpText op_text(const Gemv& op, const GemvPlan& plan) {
  const vq::GemvConfig config = kernel_config(op, plan);
  const std::int64_t outputs = vq::outputs_per_block(config);
  KernelEntry entry;
  entry.name =
      fmt::format("gemv_{}_{}_r{}_o{}i{}_c{}_w{}_{}", short_name(op.weights), enum_name(op.dtype),
                  op.shape.rows, op.shape.out_features, op.shape.in_features, plan.chunk_columns,
                  plan.threads / 32, short_name(plan.codebook, op.weights.entries()));
  entry.grid = {static_cast<unsigned>((op.shape.out_features + outputs - 1) / outputs), 1, 1};
  entry.threads = static_cast<unsigned>(plan.threads);
  entry.shared_bytes = vq::shared_layout(config).total;
  OpText text;
  text.templates = {"vq/ops/gemv.cuh"};
  text.plan = plan_text(config);
  text.kernels = kernel_entry(entry, "GemvArgs", "gemv");
  text.entries = {entry};
  text.args_bytes = sizeof(vq::GemvArgs);
  return text;
}

}  // namespace vqgen

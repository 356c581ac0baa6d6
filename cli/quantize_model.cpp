#include "cli/quantize_model.h"

#include <numeric>

namespace vqgen::cli {
namespace {

void tell_plan(const ModelPlan& plan, const Output& output) {
  output.note("{} linear layers to quantize, {} bytes; {} bytes stay dense", plan.layers,
              plan.quantized_bytes, plan.dense_bytes);
  if (!plan.dense_modules.empty()) output.note("dense: {}", some_of(plan.dense_modules));
  if (!plan.left_out.empty()) output.note("not copied: {}", some_of(plan.left_out));
  if (plan.finished_layers > 0) {
    output.note("going on where an earlier run ended: {} layers are done", plan.finished_layers);
  }
}

void report_model(const QuantizeModelResult& result, const std::string& out, Output& output) {
  const ModelPlan& plan = result.plan;
  const double bits =
      8.0 * static_cast<double>(plan.quantized_bytes) / static_cast<double>(plan.weights);
  const double sum = std::accumulate(
      result.layers.begin(), result.layers.end(), 0.0,
      [](double before, const LayerReport& each) { return before + each.relative_error; });
  const double mean = sum / static_cast<double>(result.layers.size());
  output.line("{} linear layers  {:.3f} bits per weight with codebooks  mean relative error {:.4f}",
              plan.layers, bits, mean);
  output.line("{} bytes quantized, {} bytes dense", plan.quantized_bytes, plan.dense_bytes);
  output.line("wrote {}", out);
  output.document.update({{"out", out},
                          {"bits_per_weight", bits},
                          {"quantized_bytes", plan.quantized_bytes},
                          {"dense_bytes", plan.dense_bytes},
                          {"dense_modules", plan.dense_modules},
                          {"left_out", plan.left_out},
                          {"layers", Json::array()}});
  for (const LayerReport& each : result.layers) {
    output.document["layers"].push_back({{"name", each.module},
                                         {"format", each.format},
                                         {"rel_err", each.relative_error},
                                         {"from_earlier_run", each.from_earlier_run}});
  }
}

}  // namespace

void run_quantize_model(QuantizeModelRequest request, Output& output) {
  std::size_t layers = 0;
  request.judged = [&](const ModelPlan& plan) {
    layers = plan.layers;
    tell_plan(plan, output);
  };
  request.finished = [&](const LayerReport& layer, std::size_t done) {
    if (layer.from_earlier_run) return;
    output.note("[{}/{}] {}  {}  relative error {:.4f}", done, layers, layer.module, layer.format,
                layer.relative_error);
  };
  const std::uint64_t seed = request.options.seed;
  const std::string out = request.out.string();
  output.document["seed"] = seed;
  report_model(quantize_model(request), out, output);
}

}  // namespace vqgen::cli

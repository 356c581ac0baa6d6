#include "runtime/execute.h"

#include <vq/args/attention_decode.h>
#include <vq/args/gemv.h>

#include <cmath>

#include "runtime/device_data.h"

namespace vqgen {

float softmax_scale(const AttentionDecode& op) {
  return 1.0f / std::sqrt(static_cast<float>(op.shape.head_dim));
}

AttentionOutput execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                        const AttentionDecode& op, const AttentionDecodePlan& plan,
                        const AttentionData& data, Misalignment misalignment) {
  const std::int64_t heads = std::int64_t{op.shape.batch} * op.shape.query_heads;
  const std::int64_t head_dim = op.shape.head_dim;
  DeviceData device(backend);
  vq::AttentionDecodeArgs args{};
  args.query = device.input(data.queries, misalignment.elements);
  args.keys = device.quantized(data.keys, op.shape.shared_cache, misalignment.words);
  args.values = device.quantized(data.values, op.shape.shared_cache, misalignment.words);
  args.key_smooth = device.input(data.keys.smooth);
  args.raw_keys = device.input(data.raw_keys, misalignment.elements);
  args.raw_values = device.input(data.raw_values, misalignment.elements);
  args.raw_head_stride = op.raw_slots() * head_dim;
  args.raw_batch_stride = op.shape.shared_cache ? 0 : op.shape.kv_heads * args.raw_head_stride;
  args.lengths = device.input(data.lengths);
  args.windows = device.input(data.windows);
  args.sinks = device.input(data.sinks);
  args.softmax_scale = softmax_scale(op);
  args.out = device.output<std::uint16_t>(static_cast<std::size_t>(heads * head_dim),
                                          misalignment.elements);
  args.lse = device.output<float>(static_cast<std::size_t>(heads));
  if (plan.splits > 1) {
    args.partials =
        device.output<float>(static_cast<std::size_t>(heads * plan.splits * (head_dim + 2)));
  }
  launch_all(backend, kernel, source, args);
  device.require_inputs_unchanged();
  return {device.fetch<std::uint16_t>(0), device.fetch<float>(1)};
}

std::vector<std::uint16_t> execute(Backend& backend, LoadedKernel& kernel,
                                   const KernelSource& source, const Gemv& op, const GemvData& data,
                                   Misalignment misalignment) {
  DeviceData device(backend);
  vq::GemvArgs args{};
  args.x = device.input(data.x, misalignment.elements);
  args.weights = device.quantized(data.weights, true, misalignment.words);
  args.output_scales = device.input(data.weights.output_scales);
  args.y = device.output<std::uint16_t>(
      static_cast<std::size_t>(op.shape.rows * op.shape.out_features), misalignment.elements);
  launch_all(backend, kernel, source, args);
  device.require_inputs_unchanged();
  return device.fetch<std::uint16_t>(0);
}

}  // namespace vqgen

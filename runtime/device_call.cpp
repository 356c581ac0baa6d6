#include "runtime/device_call.h"

#include <algorithm>
#include <cmath>

#include "core/kernel_config.h"
#include "runtime/workspace.h"

namespace vqgen {

namespace {

// Codes and all of a tensor that is written.
vq::EncodedArgs encoded(DeviceData& device, const QuantizedTensor& tensor, std::size_t offset) {
  vq::EncodedArgs args{};
  args.codes = device.state(tensor.codes, offset);
  args.codebooks = device.input(tensor.codebooks);
  args.scales = device.input(tensor.stage_scales);
  args.head_stride = tensor.head_words();
  args.batch_stride = tensor.heads * args.head_stride;
  return args;
}

}  // namespace

float softmax_scale(const AttentionDecode& op) {
  return 1.0f / std::sqrt(static_cast<float>(op.shape.head_dim));
}

DeviceCall::DeviceCall(Backend& backend, const AttentionDecode& op, const AttentionData& data,
                       Misalignment misalignment, int copies, std::size_t guard)
    : backend_(backend), op_(op), device_(backend, guard), guard_(guard) {
  const std::int64_t heads = std::int64_t{op.shape.batch} * op.shape.query_heads;
  const std::int64_t head_dim = op.shape.head_dim;
  vq::AttentionDecodeArgs args{};
  args.query = device_.input(data.queries, misalignment.elements);
  args.keys = device_.quantized(data.keys, op.shape.shared_cache, misalignment.words);
  args.values = device_.quantized(data.values, op.shape.shared_cache, misalignment.words);
  args.key_smooth = device_.input(data.keys.smooth);
  args.raw_keys = device_.input(data.raw_keys, misalignment.elements);
  args.raw_values = device_.input(data.raw_values, misalignment.elements);
  args.raw_head_stride = op.raw_slots() * head_dim;
  args.raw_batch_stride = op.shape.shared_cache ? 0 : op.shape.kv_heads * args.raw_head_stride;
  args.lengths = device_.input(data.lengths);
  args.windows = device_.input(data.windows);
  args.sinks = device_.input(data.sinks);
  args.score_stride = op.shape.tokens;
  args.softmax_scale = softmax_scale(op);
  args.out = device_.output<std::uint16_t>(static_cast<std::size_t>(heads * head_dim),
                                           misalignment.elements);
  args.lse = device_.output<float>(static_cast<std::size_t>(heads));
  args_.emplace_back(args);
  for (int copy = 1; copy < copies; ++copy) {
    args.keys.codes = device_.copy(data.keys.codes, misalignment.words);
    args.values.codes = device_.copy(data.values.codes, misalignment.words);
    args_.emplace_back(args);
  }
}

DeviceCall::DeviceCall(Backend& backend, const Linear& op, const LinearData& data,
                       Misalignment misalignment, int copies, std::size_t guard)
    : backend_(backend), op_(Gemv{op}), device_(backend, guard), guard_(guard) {
  vq::LinearArgs args{};
  args.x = device_.input(data.x, misalignment.elements);
  args.weights = device_.quantized(data.weights, true, misalignment.words);
  args.output_scales = device_.input(data.weights.output_scales);
  args.y = device_.output<std::uint16_t>(
      static_cast<std::size_t>(op.shape.rows * op.shape.out_features), misalignment.elements);
  args_.emplace_back(args);
  for (int copy = 1; copy < copies; ++copy) {
    args.weights.codes = device_.copy(data.weights.codes, misalignment.words);
    args_.emplace_back(args);
  }
}

DeviceCall::DeviceCall(Backend& backend, const KvAppend& op, const AppendData& data,
                       Misalignment misalignment, std::size_t guard)
    : backend_(backend), op_(op), device_(backend, guard), guard_(guard) {
  vq::KvAppendArgs args{};
  args.new_keys = device_.input(data.new_keys, misalignment.elements);
  args.new_values = device_.input(data.new_values, misalignment.elements);
  args.positions = device_.input(data.positions);
  args.counts = device_.input(data.counts);
  args.keys = encoded(device_, data.keys, misalignment.words);
  args.values = encoded(device_, data.values, misalignment.words);
  args.key_smooth = device_.input(data.keys.smooth);
  args.raw_keys = device_.state(data.raw_keys, misalignment.elements);
  args.raw_values = device_.state(data.raw_values, misalignment.elements);
  args.raw_head_stride = std::int64_t{op.raw_slots()} * op.shape.head_dim;
  args.raw_batch_stride = op.shape.kv_heads * args.raw_head_stride;
  args.capacity = static_cast<vq::i32>(op.shape.tokens);
  args_.emplace_back(args);
}

const std::vector<std::vector<std::byte>>& DeviceCall::args(const Plan& plan) {
  const auto* attention = std::get_if<AttentionDecode>(&op_);
  const auto bytes = static_cast<std::size_t>(workspace_bytes(op_, plan));
  if (bytes > workspace_.bytes()) workspace_ = GuardedBuffer(backend_, bytes, guard_);
  if (workspace_.bytes() > 0) workspace_.raise_guards(bytes);
  device_.poison_outputs();
  std::vector<std::byte> unset(bytes, std::byte{0xff});
  counter_bytes_ = std::min(bytes, static_cast<std::size_t>(vq::kCounterBytes));
  std::fill_n(unset.begin(), counter_bytes_, std::byte{0});
  backend_.upload(workspace_.data(), unset);
  const auto scores = static_cast<std::size_t>(
      attention != nullptr ? score_bytes(*attention, std::get<AttentionDecodePlan>(plan)) : 0);
  bytes_.clear();
  for (auto& each : args_) {
    std::visit(
        [&]<class Args>(Args& args) {
          point_into_workspace(args, workspace_.data(), bytes, scores);
          const auto view = std::as_bytes(std::span(&args, 1));
          bytes_.emplace_back(view.begin(), view.end());
        },
        each);
  }
  return bytes_;
}

bool DeviceCall::counters_are_zero() const {
  std::vector<std::byte> counters(counter_bytes_);
  backend_.download(counters, workspace_.data());
  return std::all_of(counters.begin(), counters.end(),
                     [](std::byte each) { return each == std::byte{0}; });
}

void DeviceCall::require_kept() const {
  device_.require_inputs_unchanged();
  if (counters_are_zero()) return;
  throw Error(ErrorKind::verification_failed,
              "the kernel left counters of its workspace that are not 0");
}

std::optional<std::string> DeviceCall::take_damage() {
  std::optional<std::string> damage = device_.take_damage();
  if (!counters_are_zero()) {
    backend_.upload(workspace_.data(), std::vector<std::byte>(counter_bytes_));
    damage = "the counters of the workspace, which are not 0";
  }
  if (!workspace_.whole()) {
    workspace_.raise_guards();
    damage = "the workspace, outside of it";
  }
  return damage;
}

AttentionOutput DeviceCall::attention_output() const {
  return {device_.fetch<std::uint16_t>(0), device_.fetch<float>(1)};
}

AppendResult DeviceCall::append_output() const {
  return {device_.fetch<std::uint32_t>(0), device_.fetch<std::uint32_t>(1),
          device_.fetch<std::uint16_t>(2), device_.fetch<std::uint16_t>(3)};
}

std::vector<std::uint16_t> DeviceCall::linear_output() const {
  return device_.fetch<std::uint16_t>(0);
}

}  // namespace vqgen

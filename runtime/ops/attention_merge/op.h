// attention_merge in the runtime.
#pragma once

#include <vq/args/attention_merge.h>
#include <vqgen/launch.h>

#include "runtime/ops/attention_merge/reference.h"
#include "runtime/ops/op.h"

namespace vqgen {

template <>
struct OpTraits<AttentionMerge> {
  using Op = AttentionMerge;
  using Data = MergeData;
  using Output = AttentionOutput;
  using HostArgs = vqgen_merge_args;
  using DeviceArgs = vq::AttentionMergeArgs;
  static constexpr const char* kLaunch =
      "the op is an attention_merge; launch it with vqgen_attention_merge_launch()";
  static constexpr auto kSize = &HostArgs::rows;
  static constexpr const char* kSizeName = "rows";
  static constexpr const char* kNoBundle =
      "attention_merge takes results of attention, which a bundle has none of; run it on "
      "generated data, without --data";

  static constexpr auto arguments();

  static std::int64_t size(const Op& op) { return op.shape.rows; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.rows = size;
    return op;
  }
  static SizeSteps size_steps(const Op&) { return {}; }
  static bool runs_empty(const Op&) { return false; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op&, std::int64_t) {
    call.rows = static_cast<vq::i32>(args.rows);
  }

  static Data hard_data(const Op& op, const HardInput& input) { return make_merge_data(op, input); }
  static AttentionResult reference(const Op&, const Data& data) { return reference_merge(data); }
  static ItemReport judge(const Op& op, const Data&, const AttentionResult& reference,
                          const Output& output) {
    return report_of(reference, output, op.dtype);
  }

  // In place, the first place of the part that becomes the result is a state.
  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  static Output output(const DeviceData& device, const Pools&, const Data&) {
    return {device.fetch<std::uint16_t>(0), device.fetch<float>(1)};
  }
  // The parts count as codes.
  static LayerBytes layer_bytes(const Data& data);
};

constexpr auto OpTraits<AttentionMerge>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  About<Op> out{.shape = [](const Op& op) -> Extents {
                  return {op.shape.rows, op.shape.heads, op.shape.head_dim};
                },
                .aligned = Aligned::access,
                .written = true,
                .free = 0,
                .least = 0};
  About<Op> lse{.shape = [](const Op& op) -> Extents {
                  return {op.shape.rows, op.shape.heads};
                },
                .content = f32<Op>,
                .written = true,
                .free = 0,
                .least = 0};
  About<Op> part_out = out, part_lse = lse;
  part_out.written = part_lse.written = false;
  return std::tuple{Array{"out", &C::out, &D::out, None{}, out},
                    Array{"lse", &C::lse, &D::lse, None{}, lse},
                    Parts{&C::parts, +[](const Op& op) { return op.shape.parts; },
                          std::tuple{Array{"outs", &C::outs, &D::outs, None{}, part_out},
                                     Array{"lses", &C::lses, &D::lses, None{}, part_lse}}}};
}

}  // namespace vqgen

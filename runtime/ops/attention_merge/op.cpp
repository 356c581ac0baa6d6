#include "runtime/ops/attention_merge/op.h"

namespace vqgen {

using AttentionMergeTraits = OpTraits<AttentionMerge>;

std::function<vq::AttentionMergeArgs(int, int)> AttentionMergeTraits::upload(const AttentionMerge&,
                                                                             const MergeData& data,
                                                                             const Upload& to) {
  std::vector<std::uint16_t*> out;
  std::vector<float*> lse;
  std::vector<std::vector<const std::uint16_t*>> outs;
  std::vector<std::vector<const float*>> lses;
  for (const MergePart& part : data.parts) {
    if (static_cast<int>(outs.size()) == data.in_place) {
      out = to.device.states(part.out, to.rotation.codes, to.misalignment.rows);
      lse = to.device.states(part.lse, to.rotation.codes, to.misalignment.words);
      outs.emplace_back(out.begin(), out.end());
      lses.emplace_back(lse.begin(), lse.end());
    } else {
      outs.push_back(to.device.inputs(part.out, to.rotation.codes, to.misalignment.rows));
      lses.push_back(to.device.inputs(part.lse, to.rotation.codes, to.misalignment.words));
    }
  }
  if (data.in_place < 0) {
    out = {to.device.output<std::uint16_t>(data.parts[0].out.size(), to.misalignment.rows)};
    lse = {to.device.output<float>(data.parts[0].lse.size(), to.misalignment.words)};
  }
  DeviceArgs args{};
  args.rows = static_cast<vq::i32>(data.rows);
  return [=](int call, int) mutable {
    args.out = at(out, call);
    args.lse = at(lse, call);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      args.outs[i] = at(outs[i], call);
      args.lses[i] = at(lses[i], call);
    }
    return args;
  };
}

LayerBytes AttentionMergeTraits::layer_bytes(const MergeData& data) {
  std::int64_t parts = 0;
  for (const MergePart& each : data.parts) parts += bytes_of(each.out, each.lse);
  return {parts, parts, 0};
}

}  // namespace vqgen

// One call of an op on host data: upload, launch, fetch. For verification and tests; a server keeps
// its data on the device.
#pragma once

#include "runtime/device_call.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// Launches all entries of the source in order with this argument struct and waits.
inline void launch_all(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                       std::span<const std::byte> args) {
  for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
    backend.launch(kernel, source, entry, args);
  }
  backend.synchronize();
}

// `kernel` is `source`, generated for this problem and plan, loaded on `backend`; `data` fits the
// problem. Gives AttentionOutput, AppendResult, DequantizeOutput, ScalarResult, or
// [rows][out_features] of a product. Error(verification_failed) where the kernel wrote to its
// inputs or left counters of its workspace that are not 0, Error(device) on faults.
template <class Op, class Data>
auto execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source, const Op& op,
             const Plan& plan, const Data& data, Misalignment misalignment = {}) {
  DeviceCall call(backend, op, data, misalignment);
  launch_all(backend, kernel, source, call.args(plan).front());
  call.require_kept();
  if constexpr (std::is_same_v<Op, AttentionDecode> || std::is_same_v<Op, AttentionMerge>) {
    return call.attention_output();
  } else if constexpr (std::is_same_v<Op, KvAppend>) {
    return call.append_output();
  } else if constexpr (std::is_same_v<Op, KvDequantize>) {
    return call.dequantize_output();
  } else if constexpr (std::is_base_of_v<ScalarMatrix, Op>) {
    return call.scalar_output(data);
  } else {
    return call.linear_output();
  }
}

// Drawn for the op.
template <class Op>
auto hard_data(const Op& op, const HardInput& input) {
  if constexpr (std::is_same_v<Op, AttentionDecode>) {
    return make_attention_data(op, input);
  } else if constexpr (std::is_same_v<Op, KvAppend>) {
    return make_append_data(op, input);
  } else if constexpr (std::is_same_v<Op, KvDequantize>) {
    return make_dequantize_data(op, input);
  } else if constexpr (std::is_same_v<Op, AttentionMerge>) {
    return make_merge_data(op, input);
  } else if constexpr (std::is_base_of_v<ScalarMatrix, Op>) {
    return make_scalar_data(op, input);
  } else {
    return make_linear_data(op, input);
  }
}

}  // namespace vqgen

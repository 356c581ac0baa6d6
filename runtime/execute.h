// One call of an op on host data: upload, launch, fetch. For verification and tests; a server keeps
// its data on the device.
#pragma once

#include "runtime/device_call.h"
#include "runtime/ops/ops.h"

namespace vqgen {

// Launches all entries of the source in order with this argument struct and waits.
inline void launch_all(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                       std::span<const std::byte> args) {
  for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
    backend.launch(kernel, source, entry, args);
  }
  backend.synchronize();
}

// Runs `kernel`, which is `source` loaded on `backend` and generated for this problem and plan;
// `data` fits the problem. Throws Error(verification_failed) if the kernel wrote to its inputs or
// left nonzero counters in its workspace, and Error(device) on faults.
template <class Op>
typename OpTraits<Op>::Output execute(Backend& backend, LoadedKernel& kernel,
                                      const KernelSource& source, const Op& op, const Plan& plan,
                                      const typename OpTraits<Op>::Data& data,
                                      Misalignment misalignment = {}) {
  DeviceCall call(backend, op, data, misalignment);
  launch_all(backend, kernel, source, call.args(plan).front());
  call.require_kept();
  return call.output(op, data);
}

// Draws the data for the op.
template <class Op>
typename OpTraits<Op>::Data hard_data(const Op& op, const HardInput& input) {
  return OpTraits<Op>::hard_data(op, input);
}

}  // namespace vqgen

#include "runtime/execute.h"

namespace vqgen {
namespace {

// Launches all entries of the source in order and waits.
void launch_all(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                DeviceCall& call, const Plan& plan) {
  const std::vector<std::byte>& args = call.args(plan).front();
  for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
    backend.launch(kernel, source, entry, args);
  }
  backend.synchronize();
  call.require_inputs_unchanged();
}

}  // namespace

AttentionOutput execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                        const AttentionDecode& op, const AttentionDecodePlan& plan,
                        const AttentionData& data, Misalignment misalignment) {
  DeviceCall call(backend, op, data, misalignment);
  launch_all(backend, kernel, source, call, plan);
  return call.attention_output();
}

std::vector<std::uint16_t> execute(Backend& backend, LoadedKernel& kernel,
                                   const KernelSource& source, const Linear& op,
                                   const LinearPlan& plan, const LinearData& data,
                                   Misalignment misalignment) {
  DeviceCall call(backend, op, data, misalignment);
  launch_all(backend, kernel, source, call, plan);
  return call.linear_output();
}

}  // namespace vqgen

#include "runtime/execute.h"

namespace vqgen {
namespace {

void run(Backend& backend, LoadedKernel& kernel, const KernelSource& source, DeviceCall& call,
         const Plan& plan) {
  launch_all(backend, kernel, source, call.args(plan).front());
  call.require_kept();
}

}  // namespace

void launch_all(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                std::span<const std::byte> args) {
  for (std::size_t entry = 0; entry < source.entries.size(); ++entry) {
    backend.launch(kernel, source, entry, args);
  }
  backend.synchronize();
}

AttentionOutput execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                        const AttentionDecode& op, const Plan& plan,
                        const AttentionData& data, Misalignment misalignment) {
  DeviceCall call(backend, op, data, misalignment);
  run(backend, kernel, source, call, plan);
  return call.attention_output();
}

AppendResult execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                     const KvAppend& op, const Plan& plan, const AppendData& data,
                     Misalignment misalignment) {
  DeviceCall call(backend, op, data, misalignment);
  run(backend, kernel, source, call, plan);
  return call.append_output();
}

std::vector<std::uint16_t> execute(Backend& backend, LoadedKernel& kernel,
                                   const KernelSource& source, const Linear& op,
                                   const Plan& plan, const LinearData& data,
                                   Misalignment misalignment) {
  DeviceCall call(backend, op, data, misalignment);
  run(backend, kernel, source, call, plan);
  return call.linear_output();
}

}  // namespace vqgen

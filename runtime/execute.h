// One call of an op on host data: upload, launch, fetch. For verification and tests; a server keeps
// its data on the device.
#pragma once

#include "runtime/device_call.h"

namespace vqgen {

// Launches all entries of the source in order with this argument struct and waits.
void launch_all(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                std::span<const std::byte> args);

// `kernel` is `source`, generated for this problem and plan, loaded on `backend`; `data` fits the
// problem. Error(verification_failed) where the kernel wrote to its inputs or left counters of
// its workspace that are not 0, Error(device) on faults.
AttentionOutput execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                        const AttentionDecode& op, const Plan& plan,
                        const AttentionData& data, Misalignment misalignment = {});

AppendResult execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                     const KvAppend& op, const Plan& plan, const AppendData& data,
                     Misalignment misalignment = {});

// The result is [rows][out_features].
std::vector<std::uint16_t> execute(Backend& backend, LoadedKernel& kernel,
                                   const KernelSource& source, const Linear& op,
                                   const Plan& plan, const LinearData& data,
                                   Misalignment misalignment = {});

}  // namespace vqgen

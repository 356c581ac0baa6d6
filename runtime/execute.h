// One call of an op on host data: upload, launch, fetch. For verification and tests; a server keeps
// its data on the device.
#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "core/quantized_tensor.h"
#include "runtime/backend/backend.h"

namespace vqgen {

// Slack before the arrays, to run kernels on the least alignment that they promise to take.
struct Misalignment {
  std::size_t elements = 0;  // 16-bit elements before queries, x, raw tokens and outputs
  std::size_t words = 0;     // 32-bit words before codes
};

struct AttentionOutput {
  std::vector<std::uint16_t> out;  // [batch][query_heads][head_dim], bits of the problem's dtype
  std::vector<float> lse;          // [batch][query_heads]
};

// `kernel` is `source`, generated for this problem and plan, loaded on `backend`; `data` fits the
// problem. Error(verification_failed) where the kernel wrote to its inputs, Error(device) on
// faults.
AttentionOutput execute(Backend& backend, LoadedKernel& kernel, const KernelSource& source,
                        const AttentionDecode& op, const AttentionDecodePlan& plan,
                        const AttentionData& data, Misalignment misalignment = {});

// The result is [rows][out_features].
std::vector<std::uint16_t> execute(Backend& backend, LoadedKernel& kernel,
                                   const KernelSource& source, const Gemv& op, const GemvData& data,
                                   Misalignment misalignment = {});

// 1 / sqrt(head_dim), VecInfer eq. 1.
float softmax_scale(const AttentionDecode& op);

}  // namespace vqgen

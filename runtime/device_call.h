// One call of an op on a device: its data uploaded once, for launches under any plan.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_dequantize.h>
#include <vq/args/linear.h>
#include <vq/args/scalar_matrix.h>

#include "core/format/quantized_tensor.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"
#include "runtime/device_data.h"
#include "runtime/paging.h"
#include "runtime/rotation.h"
#include "runtime/verify/reference_append.h"
#include "runtime/verify/reference_dequantize.h"
#include "runtime/verify/reference_merge.h"
#include "runtime/verify/reference_scalar.h"

namespace vqgen {

// Bytes of slack before arrays, which stand at multiples of 256 otherwise.
struct Misalignment {
  std::size_t codes = 0;
  std::size_t rows = 0;      // of elements, CallShape::element_bytes
  std::size_t elements = 0;  // queries, and new tokens of kv_append
  std::size_t results = 0;   // out of attention_decode, y
  std::size_t entries = 0;   // codebooks, and the workspace
  std::size_t words = 0;     // scales, log-sum-exps, integers
};

// Arrays then stand on no more than a call of this shape asks for (runtime/alignment.h).
Misalignment least_alignment(const vq::CallShape& shape);

struct AttentionOutput {
  // [data.query_rows()][query_heads][head_dim], bits of the problem's dtype; of attention_merge
  // rows are query rows
  std::vector<std::uint16_t> out;
  std::vector<float> lse;  // [data.query_rows()][query_heads]
};

// 1 / sqrt(head_dim), VecInfer eq. 1.
float softmax_scale(const AttentionDecode& op);

// Owns the device memory. `data` fits the problem and outlives this. Not thread-safe.
class DeviceCall {
 public:
  // What a layer owns has as many places on the device as `rotation` says. `guard` as DeviceData
  // has it, for the first of them and the workspace.
  DeviceCall(Backend& backend, const AttentionDecode& op, const AttentionData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);
  // args() puts the first place of the cache back as it was.
  DeviceCall(Backend& backend, const KvAppend& op, const AppendData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);
  DeviceCall(Backend& backend, const KvDequantize& op, const AttentionData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);
  // In place, args() puts the first place of the part that becomes the result back as it was.
  DeviceCall(Backend& backend, const AttentionMerge& op, const MergeData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);
  DeviceCall(Backend& backend, const ScalarMatrix& op, const ScalarData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);
  DeviceCall(Backend& backend, const Linear& op, const LinearData& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0);

  // The argument structs for kernels of this plan, of the rotation's calls from the first until
  // places repeat; they live until the next call. Outputs are poisoned, and the workspace but for
  // its counters, which are zeros.
  const std::vector<std::vector<std::byte>>& args(
      const Plan& plan, CodebookCaching codebooks = CodebookCaching::rotated);

  // Error(verification_failed) where the kernel wrote to its inputs, or left counters of the
  // workspace that are not 0.
  void require_kept() const;

  // What a launch with the first of args() wrote to beside its outputs and its plan's workspace, or
  // left in that one's counters, in words; nullopt where it kept to them. Made whole.
  std::optional<std::string> take_damage();

  // What the last launch left; the op's own.
  AttentionOutput attention_output() const;  // of attention_merge too
  // Error(verification_failed) where the kernel wrote to what is no sequence's of a pool of pages.
  AppendResult append_output() const;
  DequantizeOutput dequantize_output() const;
  ScalarResult scalar_output(const ScalarData& data) const;
  std::vector<std::uint16_t> linear_output() const;  // [rows][out_features]

 private:
  bool counters_are_zero() const;
  AppendResult paged_output(const AppendData& data) const;

  Backend& backend_;
  Problem op_;
  PagePool pool_;  // of a cache in pages, else empty
  DeviceData device_;
  std::size_t guard_;
  std::size_t slack_;  // before the workspace
  GuardedBuffer workspace_;
  std::size_t counter_bytes_ = 0;  // of the workspace, at its front; 0 where the plan takes none
  // The argument struct of call number `call` with the codebooks of number `codebooks`.
  using Args = std::variant<vq::AttentionDecodeArgs, vq::LinearArgs, vq::KvAppendArgs,
                            vq::KvDequantizeArgs, vq::AttentionMergeArgs, vq::ScalarMatrixArgs>;
  std::function<Args(int call, int codebooks)> args_of_;
  int places_;
  const AppendData* appended_ = nullptr;  // where pages are appended to
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace vqgen

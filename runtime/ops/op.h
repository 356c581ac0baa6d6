// An op is a slice: everything that the runtime knows about it is in its folder here.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/problem/problem.h"
#include "quantizer/bundle.h"
#include "runtime/device_data.h"
#include "runtime/ops/argument.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/scalar/reference.h"
#include "runtime/paging.h"
#include "runtime/rotation.h"
#include "runtime/verify/compare.h"

namespace vqgen {

// The judgement of one item of a bundle, or of generated data.
struct ItemReport {
  std::string name;
  bool ok = false;
  double rel_err = 0;      // ||kernel - reference|| / ||reference||, from the same codes; for
                           // ops that write codes, AppendVerdict::excess
  double max_abs_err = 0;  // of one element, absolute
  double tolerance = 0;    // rel_err that is allowed
  std::string why;         // what is wrong; empty if ok
  std::optional<double> lse_max_abs_err;      // attention: error of the log-sum-exp
  std::optional<ScalarErrors> scalar_errors;  // int8_quantize and int8_dequantize
  std::int64_t clamped = 0;                   // elements clamped by scales that are too small
  std::optional<double> rel_err_unquantized;  // against the tensors before quantization
};
// `tolerances`: as of compare().
ItemReport report_of(const Comparison& comparison, DType dtype, double tolerances = 1);
ItemReport report_of(const AttentionResult& reference, const AttentionOutput& output, DType dtype,
                     double tolerances = 1);

// Where the data of a call go. The upload fills `pools`, which are empty and live as long as
// `device`.
struct Upload {
  DeviceData& device;
  Pools& pools;
  const Misalignment& misalignment;
  const Rotation& rotation;
};

// Sizes of an op that kernels are made for: `least`, then each `factor` times the previous one, and
// the config's own. With factor 0, only the config's own.
struct SizeSteps {
  std::int64_t least = 0;
  int factor = 0;
};

// Each op's folder specialises this (all of them: ops.h):
//
//   Data, Output, HostArgs (vqgen/launch.h), DeviceArgs (vq/args/)
//   kLaunch                 names the C function that launches it
//   arguments()             a tuple of argument.h's types, in the order of the calls
//   kSize, kSizeName        the member of HostArgs that picks the kernel
//   size(op), resized(op, size), size_steps(op)
//   runs_empty(op)          whether a call of size 0 launches
//   set_numbers(call, args, op, most): scalar arguments of a launch in a bucket of `most`
//   hard_data(op, input), stored_data(op, item, where, input)
//   reference(op, data), judge(op, data, reference, output) -> ItemReport
//   add_losses(report, op, data, output): what only a run reports, if the op has such
//   upload(op, data, Upload) -> function (call, codebooks) -> DeviceArgs of call number `call`
//       with codebooks number `codebooks`, without the workspace
//   output(device, pool, data), layer_bytes(data)
template <class Op>
struct OpTraits;

// Uploads the arguments that are exactly one array of the data.
template <class Op, class Args, class Data>
void upload_inputs(Args& args, const Data& data, const Upload& to) {
  for_each_argument<OpTraits<Op>>([&](const auto& each) {
    if constexpr (requires { data.*each.data; }) {
      args.*each.device =
          to.device.input(data.*each.data, to.misalignment.before(each.about.aligned));
    }
  });
}

// The place of an array that a call uses.
template <class T>
T* at(const std::vector<T*>& places, int call) {
  return places[static_cast<std::size_t>(call) % places.size()];
}

template <class... Arrays>
std::int64_t bytes_of(const Arrays&... arrays) {
  return (static_cast<std::int64_t>(std::as_bytes(std::span(arrays)).size()) + ...);
}

inline std::int64_t codebook_bytes_of(const QuantizedTensor& tensor) {
  return bytes_of(tensor.codebooks, tensor.stage_scales, tensor.output_scales, tensor.smooth,
                  tensor.mean, tensor.rotation);
}

}  // namespace vqgen

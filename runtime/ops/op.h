// An op is a slice: all that the runtime knows of one stands in its folder here.
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

// The judgement of one item: a bundle's, or generated data.
struct ItemReport {
  std::string name;
  bool ok = false;
  double rel_err = 0;      // ||kernel - reference|| / ||reference||, from the same codes; of what
                           // makes codes, AppendVerdict::excess
  double max_abs_err = 0;  // of one element
  double tolerance = 0;    // rel_err allowed
  std::string why;         // what is wrong, empty where ok
  std::optional<double> lse_max_abs_err;      // attention: of the log-sum-exp
  std::optional<ScalarErrors> scalar_errors;  // int8_quantize and int8_dequantize
  std::int64_t clamped = 0;                   // elements likewise, by scales that are too small
  std::optional<double> rel_err_unquantized;  // against the tensors before quantization
};
// `tolerances`: as of compare().
ItemReport report_of(const Comparison& comparison, DType dtype, double tolerances = 1);
ItemReport report_of(const AttentionResult& reference, const AttentionOutput& output, DType dtype,
                     double tolerances = 1);

// Where the data of a call go: `pool` is empty, the upload's to fill, and lives as long as
// `device`.
struct Upload {
  DeviceData& device;
  PagePool& pool;
  const Misalignment& misalignment;
  const Rotation& rotation;
};

// Sizes of an op that kernels are made for: from `least` on `factor` times as many, and the
// config's own; that alone where the factor is 0.
struct SizeSteps {
  std::int64_t least = 0;
  int factor = 0;
};

// Specialised in each op's folder (all of them: ops.h):
//
//   Data, Output, HostArgs (vqgen/launch.h), DeviceArgs (vq/args/)
//   kLaunch                 says which C function launches it
//   arguments()             a tuple of what argument.h has, in the order of calls
//   kSize, kSizeName        the member of HostArgs that picks the kernel
//   size(op), resized(op, size), size_steps(op), runs_empty(op): whether a call of size 0 launches
//   set_numbers(call, args, op, most): what is no array, of a launch in a bucket of `most`
//   hard_data(op, input), stored_data(op, item, where, input)
//   reference(op, data), judge(op, data, reference, output) -> ItemReport
//   add_losses(report, op, data, output): what is told of a run alone, where there is such
//   upload(op, data, Upload) -> a function (call, codebooks) of DeviceArgs: those of call number
//       `call` with the codebooks of number `codebooks`, but for the workspace
//   output(device, pool, data), layer_bytes(data)
template <class Op>
struct OpTraits;

// Uploads the arguments that are an array of the data and no more.
template <class Op, class Args, class Data>
void upload_inputs(Args& args, const Data& data, const Upload& to) {
  for_each_argument<OpTraits<Op>>([&](const auto& each) {
    if constexpr (requires { data.*each.data; }) {
      args.*each.device =
          to.device.input(data.*each.data, to.misalignment.before(each.about.aligned));
    }
  });
}

// The places of one array.
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

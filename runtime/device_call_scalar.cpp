// Calls of int8_quantize and scalar_dequantize.
#include "runtime/device_call.h"

namespace vqgen {

DeviceCall::DeviceCall(Backend& backend, const ScalarMatrix& op, const ScalarData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op.decodes ? Problem(ScalarDequantize(op)) : Problem(Int8Quantize{op})),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  const auto [codes, rows] = std::pair(misalignment.codes, misalignment.rows);
  const auto from = device_.inputs(data.decodes ? data.codes : data.elements, rotation.codes,
                                   data.decodes ? codes : rows);
  vq::ScalarMatrixArgs args{};
  const std::int64_t to_bytes = data.decodes ? data.element_bytes() : 1;
  args.to =
      device_.output<std::uint8_t>(static_cast<std::size_t>(data.tokens * data.channels * to_bytes),
                                   data.decodes ? rows : codes);
  const auto scales = static_cast<std::size_t>(data.channels);
  args.scales =
      data.computes_scales
          ? device_.output<float>(scales, misalignment.entries)
          : const_cast<float*>(device_.input(data.scales, misalignment.entries));  // only read
  args.tokens = data.tokens;
  args_of_ = [=](int call, int) mutable {
    args.from = from[static_cast<std::size_t>(call) % from.size()];
    return args;
  };
}

ScalarResult DeviceCall::scalar_output(const ScalarData& data) const {
  ScalarResult result{data.elements, data.codes, data.scales};
  (data.decodes ? result.elements : result.codes) = device_.fetch<std::uint8_t>(0);
  if (data.computes_scales) result.scales = device_.fetch<float>(1);
  return result;
}

}  // namespace vqgen

#include "runtime/ops/scalar/op.h"

namespace vqgen {

using ScalarTraits = OpTraits<ScalarMatrix>;

ItemReport ScalarTraits::judge(const ScalarMatrix& op, const ScalarData& data,
                               const ScalarResult& reference, const ScalarResult& output) {
  const ScalarVerdict verdict = judge_scalar(data, reference, output);
  ItemReport report;
  report.ok = verdict.ok;
  report.rel_err = static_cast<double>(verdict.wrong) / op.elements();
  report.why = verdict.why;
  return report;
}

void ScalarTraits::add_losses(ItemReport& report, const ScalarMatrix&, const ScalarData& data,
                              const ScalarResult& output) {
  report.scalar_errors = round_trip_errors(data, output);
  report.clamped = clamped_elements(data, output);
}

std::function<vq::ScalarMatrixArgs(int, int)> ScalarTraits::upload(const ScalarMatrix&,
                                                                   const ScalarData& data,
                                                                   const Upload& to) {
  const auto [codes, rows] = std::pair(to.misalignment.codes, to.misalignment.rows);
  const auto from = to.device.inputs(data.decodes ? data.codes : data.elements, to.rotation.codes,
                                     data.decodes ? codes : rows);
  DeviceArgs args{};
  const std::int64_t to_bytes = data.decodes ? data.element_bytes() : 1;
  args.to = to.device.output<std::uint8_t>(
      static_cast<std::size_t>(data.tokens * data.channels * to_bytes),
      data.decodes ? rows : codes);
  const auto scales = static_cast<std::size_t>(data.channels);
  args.scales =
      data.computes_scales
          ? to.device.output<float>(scales, to.misalignment.entries)
          : const_cast<float*>(to.device.input(data.scales, to.misalignment.entries));  // read-only
  args.tokens = data.tokens;
  return [=](int call, int) mutable {
    args.from = at(from, call);
    return args;
  };
}

ScalarResult ScalarTraits::output(const DeviceData& device, const Pools&, const ScalarData& data) {
  ScalarResult result{data.elements, data.codes, data.scales};
  (data.decodes ? result.elements : result.codes) = device.fetch<std::uint8_t>(0);
  if (data.computes_scales) result.scales = device.fetch<float>(1);
  return result;
}

LayerBytes ScalarTraits::layer_bytes(const ScalarData& data) {
  const std::int64_t read = bytes_of(data.decodes ? data.codes : data.elements);
  return {read, read, 0};
}

}  // namespace vqgen

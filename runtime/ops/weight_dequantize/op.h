// weight_dequantize in the runtime.
#pragma once

#include <vq/args/weight_dequantize.h>
#include <vqgen/launch.h>

#include "runtime/ops/op.h"
#include "runtime/ops/weight_dequantize/reference.h"

namespace vqgen {

template <>
struct OpTraits<WeightDequantize> {
  using Op = WeightDequantize;
  using Data = WeightRowsData;
  using Output = std::vector<std::uint16_t>;  // [rows][in_features]
  using HostArgs = vqgen_weight_dequantize_args;
  using DeviceArgs = vq::WeightDequantizeArgs;
  static constexpr const char* kLaunch =
      "the op is a weight_dequantize; launch it with vqgen_weight_dequantize_launch()";
  static constexpr auto kSize = &HostArgs::rows;
  static constexpr const char* kSizeName = "rows";

  static constexpr auto arguments();

  static std::int64_t size(const Op& op) { return op.shape.rows; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.rows = size;
    return op;
  }
  static SizeSteps size_steps(const Op&) { return {}; }
  static bool runs_empty(const Op&) { return false; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op&, std::int64_t) {
    call.first_row = args.first_row;
    call.rows = static_cast<vq::i32>(args.rows);
  }

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_weight_rows_data(op, input);
  }
  // The first rows of a stored matrix.
  static Data stored_data(const Op& op, const BundleItem& item, const std::string& where,
                          const HardInput& input);
  static void match(const Op& op, const BundleItem& item, const std::string& where);
  static std::vector<double> reference(const Op&, const Data& data) {
    return reference_weight_rows(data);
  }
  static ItemReport judge(const Op& op, const Data&, const std::vector<double>& reference,
                          const Output& output) {
    return report_of(compare(reference, output, op.dtype), op.dtype);
  }
  static void add_losses(ItemReport& report, const Op& op, const Data& data, const Output& output);

  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  static Output output(const DeviceData& device, const Pools&, const Data&) {
    return device.fetch<std::uint16_t>(0);
  }
  static LayerBytes layer_bytes(const Data& data);
};

constexpr auto OpTraits<WeightDequantize>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  constexpr auto outputs = [](const Op& op) -> Extents { return {op.shape.out_features}; };
  return std::tuple{
      Array{"out", &C::out, &D::out, None{},
            About<Op>{.shape = [](const Op& op) -> Extents {
                        return {op.shape.rows, op.shape.in_features};
                      },
                      .aligned = Aligned::access,
                      .written = true,
                      .free = 0,
                      .least = 0}},
      Tensor{"weights", &C::weights, &D::weights, &Op::weights, None{},
             +[](const Op& op) -> StoredTensor {
               const WeightRowsShape& s = op.shape;
               return {{s.out_features},
                       s.in_features,
                       weight_units(op.weights, s.out_features, s.in_features)};
             }},
      Array{"output_scales", &C::output_scales, &D::output_scales, None{},
            About<Op>{.shape = outputs, .content = f32<Op>, .taken = [](const Op& op) {
                        return op.weights.output_scales;
                      }}}};
}

}  // namespace vqgen

// gemv and gemm in the runtime.
#pragma once

#include <vq/args/linear.h>
#include <vqgen/launch.h>

#include "runtime/ops/linear/reference.h"
#include "runtime/ops/op.h"

namespace vqgen {

template <>
struct OpTraits<Linear> {
  using Op = Linear;
  using Data = LinearData;
  using Output = std::vector<std::uint16_t>;  // [rows][y_columns()]
  using HostArgs = vqgen_linear_args;
  using DeviceArgs = vq::LinearArgs;
  static constexpr const char* kLaunch =
      "the op is a GEMM or GEMV; launch it with vqgen_linear_launch()";
  static constexpr auto kSize = &HostArgs::m;
  static constexpr const char* kSizeName = "m";

  static constexpr auto arguments();
  // With experts, a further leading axis; the codebooks of an expert follow those of the previous
  // one.
  static Extents outputs(const Op& op) {
    if (op.shape.grouped()) return {op.shape.experts, op.shape.out_features};
    return {op.shape.out_features};
  }

  static Problem problem(const Op& op) {
    return op.shape.rows < Gemm::kLeastRows ? Problem(Gemv{op}) : Problem(Gemm{op});
  }
  static std::int64_t size(const Op& op) { return op.shape.call_rows(); }
  // Only the device knows how many rows an expert has, so there is one size.
  static SizeSteps size_steps(const Op& op) {
    return op.shape.grouped() ? SizeSteps{} : SizeSteps{1, 2};
  }
  static bool runs_empty(const Op&) { return false; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op& op, std::int64_t) {
    call.rows = static_cast<vq::i32>(args.m);
    call.multiplier = static_cast<float>(op.shape.multiplier);
  }

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_linear_data(op, input);
  }
  // If the bundle stores no x, it is drawn.
  static Data stored_data(const Op& op, const BundleItem& item, const std::string& where,
                          const HardInput& input);
  static void match(const Op& op, const BundleItem& item, const std::string& where);
  static std::vector<double> reference(const Op&, const Data& data) {
    return reference_linear(data);
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

template <>
struct OpTraits<Gemv> : OpTraits<Linear> {
  static Problem resized(Gemv op, std::int64_t size);
};
template <>
struct OpTraits<Gemm> : OpTraits<Linear> {
  // A gemm of one row becomes a gemv.
  static Problem resized(Gemm op, std::int64_t size);
};

constexpr auto OpTraits<Linear>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  constexpr auto grouped = [](const Op& op) { return op.shape.grouped(); };
  return std::tuple{
      Array{"x", &C::x, &D::x, &Data::x,
            About<Op>{.shape = [](const Op& op) -> Extents {
                        return {op.shape.call_rows(), op.shape.in_features};
                      },
                      .aligned = Aligned::access,
                      .free = 0,
                      .least = 0}},
      Array{"y", &C::y, &D::y, None{},
            About<Op>{.shape = [](const Op& op) -> Extents {
                        return {op.shape.call_rows(), op.shape.y_columns()};
                      },
                      .aligned = Aligned::element,
                      .written = true,
                      .free = 0,
                      .least = 0}},
      Tensor{"weights", &C::weights, &D::weights, &Op::weights, None{},
             +[](const Op& op) -> StoredTensor {
               return {outputs(op), op.shape.in_features, weight_units(op)};
             }},
      Array{"output_scales", &C::output_scales, &D::output_scales, None{},
            About<Op>{.shape = outputs,
                      .content = f32<Op>,
                      .taken = [](const Op& op) { return op.weights.output_scales; }}},
      Array{"expert_rows", &C::expert_rows, &D::expert_rows, None{},
            About<Op>{.shape = [](const Op& op) -> Extents { return {op.shape.experts + 1}; },
                      .content = i32<Op>,
                      .taken = grouped,
                      .refused = "is given, and the config has no experts; leave it null, or "
                                 "prepare with experts"}},
      Array{"residual", &C::residual, &D::residual, &Data::residual,
            About<Op>{.shape = [](const Op& op) -> Extents {
                        return {op.shape.call_rows(), op.shape.y_columns()};
                      },
                      .aligned = Aligned::element,
                      .taken = [](const Op& op) { return op.shape.residual; },
                      .refused = "is given, and the config has none; leave it null, or prepare "
                                 "with residual in the shape",
                      .free = 0,
                      .least = 0}}};
}

}  // namespace vqgen

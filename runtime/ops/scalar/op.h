// int8_quantize and int8_dequantize in the runtime.
#pragma once

#include <vq/args/scalar_matrix.h>
#include <vqgen/launch.h>

#include "runtime/ops/op.h"
#include "runtime/ops/scalar/reference.h"

namespace vqgen {

template <>
struct OpTraits<ScalarMatrix> {
  using Op = ScalarMatrix;
  using Data = ScalarData;
  using Output = ScalarResult;
  using HostArgs = vqgen_scalar_args;
  using DeviceArgs = vq::ScalarMatrixArgs;
  static constexpr auto kSize = &HostArgs::tokens;
  static constexpr const char* kSizeName = "tokens";
  static constexpr const char* kNoBundle =
      "int8_quantize and int8_dequantize take a plain matrix, which a bundle has none of; run "
      "them on generated data, without --data";

  static constexpr auto arguments();

  static Problem problem(const Op& op) {
    return op.decodes ? Problem(Int8Dequantize(op)) : Problem(Int8Quantize{op});
  }
  static std::int64_t size(const Op& op) { return op.shape.tokens; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.tokens = size;
    return problem(op);
  }
  static SizeSteps size_steps(const Op&) { return {}; }
  // With no tokens, a kernel still writes computed scales, which are 1.
  static bool runs_empty(const Op& op) { return op.shape.scales == Scales::computed; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op&, std::int64_t) {
    call.tokens = args.tokens;
  }

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_scalar_data(op, input);
  }
  static ScalarResult reference(const Op&, const Data& data) { return reference_scalar(data); }
  static ItemReport judge(const Op& op, const Data& data, const ScalarResult& reference,
                          const Output& output);
  // Adds the loss of quantizing and dequantizing, with one query of the same range.
  static void add_losses(ItemReport& report, const Op& op, const Data& data, const Output& output);

  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  static Output output(const DeviceData& device, const Pools&, const Data& data);
  // The bytes that a call reads; calls write to one place, which is as large as a part of it.
  static LayerBytes layer_bytes(const Data& data);
};

template <>
struct OpTraits<Int8Quantize> : OpTraits<ScalarMatrix> {
  static constexpr const char* kLaunch =
      "the op is a int8_quantize; launch it with vqgen_scalar_launch()";
};
template <>
struct OpTraits<Int8Dequantize> : OpTraits<ScalarMatrix> {
  static constexpr const char* kLaunch =
      "the op is a int8_dequantize; launch it with vqgen_scalar_launch()";
};

constexpr auto OpTraits<ScalarMatrix>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  constexpr auto shape = [](const Op& op) -> Extents {
    return {op.shape.tokens, op.shape.channels};
  };
  constexpr auto codes = [](const Op& op) { return op.decodes ? Content::i8 : Content::own; };
  constexpr auto elements = [](const Op& op) { return op.decodes ? Content::own : Content::i8; };
  return std::tuple{
      Array{
          "from", &C::from, &D::from, None{},
          About<Op>{
              .shape = shape, .content = codes, .aligned = Aligned::access, .free = 0, .least = 0}},
      Array{"to", &C::to, &D::to, None{},
            About<Op>{.shape = shape,
                      .content = elements,
                      .aligned = Aligned::access,
                      .written = true,
                      .free = 0,
                      .least = 0}},
      Array{"scales", &C::scales, &D::scales, None{},
            About<Op>{.shape = [](const Op& op) -> Extents { return {op.shape.channels}; },
                      .content = f32<Op>,
                      .aligned = Aligned::entry}}};
}

}  // namespace vqgen

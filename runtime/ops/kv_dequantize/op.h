// kv_dequantize in the runtime.
#pragma once

#include <vq/args/kv_dequantize.h>

#include "runtime/ops/cache.h"
#include "runtime/ops/kv_dequantize/reference.h"

namespace vqgen {

template <>
struct OpTraits<KvDequantize> {
  using Op = KvDequantize;
  using Data = AttentionData;
  using Output = DequantizeOutput;
  using HostArgs = vqgen_kv_dequantize_args;
  using DeviceArgs = vq::KvDequantizeArgs;
  static constexpr const char* kLaunch =
      "the op is a kv_dequantize; launch it with vqgen_kv_dequantize_launch()";
  static constexpr auto kSize = &HostArgs::tokens;
  static constexpr const char* kSizeName = "tokens";

  static constexpr auto arguments();

  static std::int64_t size(const Op& op) { return op.shape.tokens; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.tokens = size;
    return op;
  }
  static SizeSteps size_steps(const Op&) { return kTokenSteps; }
  static bool runs_empty(const Op&) { return false; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op&, std::int64_t) {
    call.tokens = static_cast<vq::i32>(args.tokens);
  }

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_dequantize_data(op, input);
  }
  // Reads each stored cache whole, whatever its queries are.
  static Data stored_data(const Op& op, const BundleItem& item, const std::string& where,
                          const HardInput& input);
  static void match(const Op& op, const BundleItem& item, const std::string& where);
  static DequantizeResult reference(const Op&, const Data& data) {
    return reference_dequantize(data);
  }
  static ItemReport judge(const Op& op, const Data& data, const DequantizeResult& reference,
                          const Output& output);
  static void add_losses(ItemReport& report, const Op& op, const Data& data, const Output& output);

  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  static Output output(const DeviceData& device, const Pools&, const Data&) {
    return {device.fetch<std::uint16_t>(0), device.fetch<std::uint16_t>(1)};
  }
  static LayerBytes layer_bytes(const Data& data) { return layer_bytes_of(data); }
};

constexpr auto OpTraits<KvDequantize>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  const About<Op> keys{
      .shape = [](const Op& op) -> Extents {
        return {op.shape.batch, op.shape.kv_heads, op.shape.tokens, op.shape.head_dim};
      },
      .aligned = Aligned::access,
      .written = true,
      .free = 2,
      .least = 0};
  About<Op> values = keys;
  values.shape = [](const Op& op) -> Extents {
    return {op.shape.batch, op.shape.kv_heads, op.shape.tokens, op.shape.value_dim()};
  };
  return std::tuple_cat(
      std::tuple{Array{"out_keys", &C::out_keys, &D::out_keys, None{}, keys},
                 Array{"out_values", &C::out_values, &D::out_values, None{}, values}},
      cache_arguments<Op, C, D>(false), count_arguments<Op, C, D>());
}

}  // namespace vqgen

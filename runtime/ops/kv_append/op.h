// kv_append in the runtime.
#pragma once

#include <vq/args/kv_append.h>

#include "runtime/ops/cache.h"
#include "runtime/ops/kv_append/reference.h"

namespace vqgen {

template <>
struct OpTraits<KvAppend> {
  using Op = KvAppend;
  using Data = AppendData;
  using Output = AppendResult;
  using HostArgs = vqgen_append_args;
  using DeviceArgs = vq::KvAppendArgs;
  static constexpr const char* kLaunch =
      "the op is a kv_append; launch it with vqgen_append_launch()";
  static constexpr auto kSize = &HostArgs::tokens;
  static constexpr const char* kSizeName = "tokens";
  static constexpr const char* kNoBundle =
      "kv_append makes codes of new tokens, so a bundle has nothing for it; run it on generated "
      "data, without --data";

  static constexpr auto arguments();

  // The tokens that the cache has room for change neither plan nor text.
  static std::int64_t size(const Op& op) { return op.shape.tokens; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.tokens = size;
    return op;
  }
  static SizeSteps size_steps(const Op&) { return {}; }
  static bool runs_empty(const Op&) { return false; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op& op, std::int64_t) {
    call.capacity = static_cast<vq::i32>(args.tokens);
    call.batch = op.shape.batch;
  }

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_append_data(op, input);
  }
  // The judge needs no reference: it computes its own.
  static None reference(const Op&, const Data&) { return {}; }
  static ItemReport judge(const Op& op, const Data& data, None, const Output& output);

  // The first place of the cache is a state.
  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  // Throws Error(verification_failed) if the kernel wrote to pages of the pool that no sequence
  // owns.
  static Output output(const DeviceData& device, const Pools& pools, const Data& data);
  static LayerBytes layer_bytes(const Data& data);
};

constexpr auto OpTraits<KvAppend>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  const About<Op> keys{
      .shape = [](const Op& op) -> Extents {
        return {op.shape.batch, op.shape.new_tokens, op.shape.kv_heads, op.shape.head_dim};
      },
      .aligned = Aligned::element};
  About<Op> values = keys;
  values.shape = [](const Op& op) -> Extents {
    return {op.shape.batch, op.shape.new_tokens, op.shape.kv_heads, op.shape.value_dim()};
  };
  return std::tuple_cat(
      std::tuple{
          Array{"new_keys", &C::new_keys, &D::new_keys, &Data::new_keys, keys},
          Array{"new_values", &C::new_values, &D::new_values, &Data::new_values, values},
          Array{"positions", &C::positions, &D::positions, &Data::positions,
                About<Op>{.shape = one_a_sequence<Op>, .content = i32<Op>}},
          Array{"counts", &C::counts, &D::counts, &Data::counts,
                About<Op>{.shape = one_a_sequence<Op>, .content = i32<Op>, .optional = true}}},
      cache_arguments<Op, C, D>(true));
}

}  // namespace vqgen

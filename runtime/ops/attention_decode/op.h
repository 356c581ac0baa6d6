// attention_decode in the runtime.
#pragma once

#include <vq/args/attention_decode.h>

#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/cache.h"

namespace vqgen {

template <>
struct OpTraits<AttentionDecode> {
  using Op = AttentionDecode;
  using Data = AttentionData;
  using Output = AttentionOutput;
  using HostArgs = vqgen_attention_args;
  using DeviceArgs = vq::AttentionDecodeArgs;
  static constexpr const char* kLaunch =
      "the op is an attention; launch it with vqgen_attention_launch()";
  static constexpr auto kSize = &HostArgs::tokens;
  static constexpr const char* kSizeName = "tokens";

  static constexpr auto arguments();

  static std::int64_t size(const Op& op) { return op.shape.tokens; }
  static Problem resized(Op op, std::int64_t size) {
    op.shape.tokens = size;
    return op;
  }
  static SizeSteps size_steps(const Op&) { return kTokenSteps; }
  static bool runs_empty(const Op&) { return true; }
  static void set_numbers(DeviceArgs& call, const HostArgs& args, const Op& op, std::int64_t most) {
    call.capacity = most;
    call.batch = op.shape.batch;
    call.softmax_scale = args.softmax_scale > 0 ? args.softmax_scale : softmax_scale(op);
    set_softcap(call, op);
    call.tree_mask = reinterpret_cast<const vq::u32*>(args.tree_mask);
  }
  static void set_softcap(DeviceArgs& call, const Op& op);

  static Data hard_data(const Op& op, const HardInput& input) {
    return make_attention_data(op, input);
  }
  // One query token per sequence, whatever the problem takes.
  static Data stored_data(const Op& op, const BundleItem& item, const std::string& where,
                          const HardInput& input);
  static void match(const Op& op, const BundleItem& item, const std::string& where);
  static AttentionResult reference(const Op& op, const Data& data) {
    return reference_attention(data, static_cast<double>(softmax_scale(op)));
  }
  static ItemReport judge(const Op& op, const Data& data, const AttentionResult& reference,
                          const Output& output);
  static void add_losses(ItemReport& report, const Op& op, const Data& data, const Output& output);

  static std::function<DeviceArgs(int, int)> upload(const Op& op, const Data& data,
                                                    const Upload& to);
  static Output output(const DeviceData& device, const Pools&, const Data&) {
    return {device.fetch<std::uint16_t>(0), device.fetch<float>(1)};
  }
  static LayerBytes layer_bytes(const Data& data) { return layer_bytes_of(data); }
};

constexpr auto OpTraits<AttentionDecode>::arguments() {
  using C = HostArgs;
  using D = DeviceArgs;
  constexpr auto several = [](const Op& op) { return op.shape.query_tokens > 1; };
  constexpr const char* kOne =
      "is given, and query_tokens of the config is 1; leave it null, or prepare with more";
  constexpr auto brings_new = [](const Op& op) {
    return op.shape.query_tokens > 1 && !op.shape.shared_prefix;
  };
  // Only the device knows how many rows of several query tokens count.
  const About<Op> queries{.shape = [](const Op& op) -> Extents {
                            return {std::int64_t{op.shape.batch} * op.shape.query_tokens,
                                    op.shape.query_heads, op.shape.head_dim};
                          },
                          .aligned = Aligned::element,
                          .free = 0,
                          .least = 0,
                          .free_with = "query_start"};
  About<Op> outs = queries;
  outs.shape = [](const Op& op) -> Extents {
    return {std::int64_t{op.shape.batch} * op.shape.query_tokens, op.shape.query_heads,
            op.shape.value_dim()};
  };
  outs.written = true;
  const About<Op> new_keys{.shape = [](const Op& op) -> Extents {
                             return {std::int64_t{op.shape.batch} * op.shape.query_tokens,
                                     op.shape.kv_heads, op.shape.head_dim};
                           },
                           .aligned = Aligned::access,
                           .taken = brings_new,
                           .refused =
                               "is given, and query_tokens of the config is 1, or shared_prefix "
                               "is true; leave it null, or prepare with new query tokens",
                           .optional = true,
                           .free = 0,
                           .least = 0,
                           .free_with = "query_start"};
  About<Op> new_values = new_keys;
  new_values.shape = [](const Op& op) -> Extents {
    return {std::int64_t{op.shape.batch} * op.shape.query_tokens, op.shape.kv_heads,
            op.shape.value_dim()};
  };
  return std::tuple_cat(
      std::tuple{Array{"query", &C::query, &D::query, &Data::queries, queries},
                 Array{"out", &C::out, &D::out, None{}, outs},
                 Array{"lse", &C::lse, &D::lse, None{},
                       About<Op>{.shape = [](const Op& op) -> Extents {
                                   return {std::int64_t{op.shape.batch} * op.shape.query_tokens,
                                           op.shape.query_heads};
                                 },
                                 .content = f32<Op>,
                                 .written = true,
                                 .free = 0,
                                 .least = 0,
                                 .free_with = "query_start"}}},
      cache_arguments<Op, C, D>(false), count_arguments<Op, C, D>(),
      std::tuple{
          Array{"query_start", &C::query_start, &D::query_start, &Data::query_start,
                About<Op>{.shape = [](const Op& op) -> Extents { return {op.shape.batch + 1}; },
                          .content = i32<Op>,
                          .taken = several,
                          .refused = kOne}},
          Array{"new_keys", &C::new_keys, &D::new_keys, &Data::new_keys, new_keys},
          Array{"new_values", &C::new_values, &D::new_values, &Data::new_values, new_values},
          Array{
              "sink_logits", &C::sink_logits, &D::sink_logits, &Data::sink_logits,
              About<Op>{.shape = [](const Op& op) -> Extents { return {op.shape.query_heads}; },
                        .content = f32<Op>,
                        .taken = [](const Op& op) { return op.shape.sink_logits; },
                        .refused = "is given, and sink_logits of the config is not true; leave it "
                                   "null, or prepare with it"}},
          // Kernels read words.
          Array{"tree_mask", &C::tree_mask, None{}, None{},
                About<Op>{.shape = [](const Op& op) -> Extents {
                            return {std::int64_t{op.shape.batch} * op.shape.query_tokens};
                          },
                          .content = i64<Op>,
                          .taken = [](const Op& op) { return op.shape.tree_mask; },
                          .refused = "is given, and tree_mask of the config is not true; leave it "
                                     "null, or prepare with it",
                          .free = 0,
                          .least = 0,
                          .free_with = "query_start"}}});
}

}  // namespace vqgen

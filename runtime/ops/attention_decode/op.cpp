#include "runtime/ops/attention_decode/op.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "quantizer/basis.h"
#include "runtime/ops/stored.h"

namespace vqgen {
namespace {

// Gives each sequence its own copy of the cache that the bundle has once.
void repeat_cache(AttentionData& data) {
  const auto repeat = [&](auto& values) {
    const auto once = std::ssize(values);
    values.resize(static_cast<std::size_t>(data.batch * once));
    for (std::int64_t b = 1; b < data.batch; ++b) {
      std::copy_n(values.begin(), once, values.begin() + b * once);
    }
  };
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    tensor->batch = data.batch;
    repeat(tensor->codes);
  }
  for (auto* rows :
       {&data.raw_keys, &data.raw_values, &data.original_keys, &data.original_values}) {
    repeat(*rows);
  }
}

}  // namespace

using AttentionDecodeTraits = OpTraits<AttentionDecode>;

LayerBytes layer_bytes_of(const AttentionData& data) {
  const std::int64_t stored = bytes_of(data.keys.codes, data.values.codes);
  const std::int64_t tokens =
      std::accumulate(data.lengths.begin(), data.lengths.end(), std::int64_t{0});
  const double share = static_cast<double>(tokens) / static_cast<double>(data.batch) /
                       static_cast<double>(data.keys.rows);
  return {std::llround(static_cast<double>(stored) * std::min(share, 1.0)),
          stored + bytes_of(data.raw_keys, data.raw_values),
          codebook_bytes_of(data.keys) + codebook_bytes_of(data.values)};
}

void AttentionDecodeTraits::set_softcap(DeviceArgs& call, const AttentionDecode& op) {
  if (op.shape.logit_softcap == 0) return;
  const double cap = op.shape.logit_softcap * std::numbers::log2e;
  call.softcap_span = static_cast<float>(-2 * cap);
  call.softcap_rate = static_cast<float>(2 / cap * std::numbers::log2e);
}

AttentionData AttentionDecodeTraits::stored_data(const AttentionDecode& op, const BundleItem& item,
                                                 const std::string& where, const HardInput&) {
  const Matcher matcher(where);
  AttentionData data = stored_cache(matcher, op, item);
  take_gain(data.keys);
  if (data.queries.empty()) {
    matcher.fail("holds no queries; quantize with --queries, or run on generated data");
  }
  matcher.same<std::int64_t>("batch", data.batch, op.shape.batch);
  matcher.same<std::int64_t>("query_heads", data.query_heads, op.shape.query_heads);
  if (op.shape.sink_logits) {
    matcher.fail("holds no sink logits, which the config takes; run on generated data");
  }
  data.sliding_window = op.shape.sliding_window;
  data.attention_chunk = op.shape.attention_chunk;
  data.shared_prefix = op.shape.shared_prefix;
  data.logit_softcap = op.shape.logit_softcap;
  if (data.keys.batch == 1) repeat_cache(data);
  if (op.shape.tree_mask) {
    matcher.fail("holds no drafts, which the config takes; run on generated data");
  }
  if (op.shape.query_tokens > 1) {  // of which a bundle has one per sequence
    data.query_start.resize(static_cast<std::size_t>(data.batch) + 1);
    std::iota(data.query_start.begin(), data.query_start.end(), 0);
  }
  add_raw(matcher, op, data);
  return data;
}

void AttentionDecodeTraits::match(const AttentionDecode& op, const BundleItem& item,
                                  const std::string& where) {
  stored_cache(Matcher(where), op, item);
}

ItemReport AttentionDecodeTraits::judge(const AttentionDecode& op, const AttentionData&,
                                        const AttentionResult& reference,
                                        const AttentionOutput& output) {
  return report_of(reference, output, op.dtype, attention_tolerances(op));
}

void AttentionDecodeTraits::add_losses(ItemReport& report, const AttentionDecode& op,
                                       const AttentionData& data, const AttentionOutput& output) {
  if (data.original_keys.empty() || data.original_values.empty()) return;
  const AttentionResult plain =
      reference_attention_unquantized(data, static_cast<double>(softmax_scale(op)));
  report.rel_err_unquantized = compare(plain.out, output.out, op.dtype).rel_err;
}

std::function<vq::AttentionDecodeArgs(int, int)> AttentionDecodeTraits::upload(
    const AttentionDecode& op, const AttentionData& data, const Upload& to) {
  to.pools = pools_of(op, data);
  const auto rows = static_cast<std::size_t>(data.query_rows() * op.shape.query_heads);
  DeviceArgs args{};
  upload_inputs<AttentionDecode>(args, data, to);
  const auto cache = place_cache(args, op, data, to);
  args.capacity = op.shape.tokens;
  args.batch = op.shape.batch;
  args.softmax_scale = softmax_scale(op);
  set_softcap(args, op);
  args.tree_mask =
      reinterpret_cast<const vq::u32*>(to.device.input(data.tree_masks, to.misalignment.words));
  args.out = to.device.output<std::uint16_t>(rows * static_cast<std::size_t>(op.shape.value_dim()),
                                             to.misalignment.results);
  args.lse = to.device.output<float>(rows, to.misalignment.words);
  return [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

}  // namespace vqgen

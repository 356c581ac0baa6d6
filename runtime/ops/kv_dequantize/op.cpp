#include "runtime/ops/kv_dequantize/op.h"

#include "quantizer/basis.h"
#include "runtime/ops/stored.h"

namespace vqgen {

using KvDequantizeTraits = OpTraits<KvDequantize>;

AttentionData KvDequantizeTraits::stored_data(const KvDequantize& op, const BundleItem& item,
                                              const std::string& where, const HardInput&) {
  const Matcher matcher(where);
  AttentionData data = stored_cache(matcher, op, item);
  take_gain(data.keys);
  matcher.same<std::int64_t>("the number of caches", data.keys.batch, op.shape.batch);
  data.batch = data.keys.batch;
  data.lengths.assign(static_cast<std::size_t>(data.batch),
                      static_cast<std::int32_t>(data.keys.rows));
  data.recent_counts.clear();
  data.sinks.clear();
  add_raw(matcher, op, data);
  return data;
}

void KvDequantizeTraits::match(const KvDequantize& op, const BundleItem& item,
                               const std::string& where) {
  stored_cache(Matcher(where), op, item);
}

ItemReport KvDequantizeTraits::judge(const KvDequantize& op, const AttentionData& data,
                                     const DequantizeResult& reference,
                                     const DequantizeOutput& output) {
  const DequantizeVerdict verdict = judge_dequantize(data, reference, output);
  ItemReport report = report_of(verdict.comparison, op.dtype);
  report.why = verdict.why;
  return report;
}

void KvDequantizeTraits::add_losses(ItemReport& report, const KvDequantize&,
                                    const AttentionData& data, const DequantizeOutput& output) {
  if (data.original_keys.empty() || data.original_values.empty()) return;
  report.rel_err_unquantized =
      judge_dequantize(data, reference_decode_unquantized(data), output).comparison.rel_err;
}

std::function<vq::KvDequantizeArgs(int, int)> KvDequantizeTraits::upload(const KvDequantize& op,
                                                                         const AttentionData& data,
                                                                         const Upload& to) {
  to.pools = pools_of(op, data);
  const std::int64_t rows = data.batch * data.keys.heads * data.keys.rows;
  const auto elements = [rows](const QuantizedTensor& tensor) {
    return static_cast<std::size_t>(rows * tensor.columns);
  };
  DeviceArgs args{};
  args.out_keys = to.device.output<std::uint16_t>(elements(data.keys), to.misalignment.rows);
  args.out_values = to.device.output<std::uint16_t>(elements(data.values), to.misalignment.rows);
  upload_inputs<KvDequantize>(args, data, to);
  const auto cache = place_cache(args, op, data, to);
  args.tokens = static_cast<vq::i32>(data.keys.rows);
  return [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

}  // namespace vqgen

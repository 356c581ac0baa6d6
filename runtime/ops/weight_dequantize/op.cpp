#include "runtime/ops/weight_dequantize/op.h"

#include "runtime/ops/cache.h"
#include "runtime/ops/stored.h"

namespace vqgen {

using WeightTraits = OpTraits<WeightDequantize>;

WeightRowsData WeightTraits::stored_data(const WeightDequantize& op, const BundleItem& item,
                                         const std::string& where, const HardInput&) {
  const LinearData& stored = stored_weights(Matcher(where), op, WeightDequantize::kOp, item);
  return {stored.dtype, stored.weights, 0, op.shape.rows, stored.original_weights};
}

void WeightTraits::match(const WeightDequantize& op, const BundleItem& item,
                         const std::string& where) {
  stored_weights(Matcher(where), op, WeightDequantize::kOp, item);
}

void WeightTraits::add_losses(ItemReport& report, const WeightDequantize& op,
                              const WeightRowsData& data,
                              const std::vector<std::uint16_t>& output) {
  if (data.original_weights.empty()) return;
  report.rel_err_unquantized =
      compare(reference_weight_rows_unquantized(data), output, op.dtype).rel_err;
}

std::function<vq::WeightDequantizeArgs(int, int)> WeightTraits::upload(const WeightDequantize& op,
                                                                       const WeightRowsData& data,
                                                                       const Upload& to) {
  const auto& [device, pool, misalignment, rotation] = to;
  DeviceArgs args{};
  args.out = device.output<std::uint16_t>(
      static_cast<std::size_t>(data.rows * op.shape.in_features), misalignment.rows);
  auto weights = places_of<vq::QuantizedArgs>(data.weights, to);
  weights.codes = device.inputs(data.weights.codes, rotation.codes, misalignment.codes);
  const auto output_scales =
      device.inputs(data.weights.output_scales, rotation.codebooks, misalignment.words);
  args.first_row = data.first_row;
  args.rows = static_cast<vq::i32>(data.rows);
  return [=](int call, int codebooks) mutable {
    args.weights = weights(call, codebooks);
    args.output_scales = at(output_scales, codebooks);
    return args;
  };
}

// A call reads the codes of its rows.
LayerBytes WeightTraits::layer_bytes(const WeightRowsData& data) {
  const std::int64_t codes = bytes_of(data.weights.codes);
  return {codes / data.weights.rows * data.rows, codes, codebook_bytes_of(data.weights), 1};
}

}  // namespace vqgen

#include "runtime/ops/linear/op.h"

#include "runtime/ops/cache.h"
#include "runtime/ops/stored.h"

namespace vqgen {
namespace {

const LinearData& stored_matrix(const Matcher& matcher, const Linear& op, const BundleItem& item) {
  if (op.shape.grouped()) {
    matcher.fail(
        "holds one matrix, the config has experts; run it on generated data, without --data");
  }
  return stored_weights(matcher, op, Gemv::kOp, item);
}

}  // namespace

using LinearTraits = OpTraits<Linear>;

Problem OpTraits<Gemv>::resized(Gemv op, std::int64_t size) {
  if (!op.shape.grouped()) op.shape.rows = static_cast<int>(size);
  return op;
}

Problem OpTraits<Gemm>::resized(Gemm op, std::int64_t size) {
  if (op.shape.grouped()) return op;
  op.shape.rows = static_cast<int>(size);
  return problem(op);
}

LinearData LinearTraits::stored_data(const Linear& op, const BundleItem& item,
                                     const std::string& where, const HardInput& input) {
  const Matcher matcher(where);
  LinearData data = stored_matrix(matcher, op, item);
  if (data.input_rows > 0 && data.input_rows < op.shape.rows) {
    matcher.fail(fmt::format("holds {} rows of x, the config asks for {}; lower its rows",
                             data.input_rows, op.shape.rows));
  }
  if (data.input_rows == 0) {
    data.x = make_linear_data(op, HardInput{.seed = input.seed}).x;
  } else {
    data.x.resize(static_cast<std::size_t>(op.shape.rows * op.shape.in_features));
  }
  data.input_rows = op.shape.rows;
  set_epilogue(data, op, input.seed);
  return data;
}

void LinearTraits::match(const Linear& op, const BundleItem& item, const std::string& where) {
  stored_matrix(Matcher(where), op, item);
}

void LinearTraits::add_losses(ItemReport& report, const Linear& op, const LinearData& data,
                              const std::vector<std::uint16_t>& output) {
  if (data.original_weights.empty()) return;
  report.rel_err_unquantized =
      compare(reference_linear_unquantized(data), output, op.dtype).rel_err;
}

std::function<vq::LinearArgs(int, int)> LinearTraits::upload(const Linear& op,
                                                             const LinearData& data,
                                                             const Upload& to) {
  const auto& [device, pool, misalignment, rotation] = to;
  DeviceArgs args{};
  upload_inputs<Linear>(args, data, to);
  auto weights = places_of<vq::QuantizedArgs>(data.weights, to);
  weights.codes = device.inputs(data.weights.codes, rotation.codes, misalignment.codes);
  const auto output_scales =
      device.inputs(data.weights.output_scales, rotation.codebooks, misalignment.words);
  args.y = device.output<std::uint16_t>(
      static_cast<std::size_t>(data.input_rows * op.shape.y_columns()), misalignment.results);
  args.rows = static_cast<vq::i32>(data.input_rows);
  args.multiplier = static_cast<float>(op.shape.multiplier);
  std::vector<const std::int32_t*> expert_rows{nullptr};
  if (!data.expert_rows.empty()) {
    expert_rows = {device.input(data.expert_rows, misalignment.words)};
    for (int turn = 1; turn < rotation.turns; ++turn) {
      expert_rows.push_back(device.copy(offsets_of_turn(data, turn), misalignment.words));
    }
  }
  return [=, turns = rotation.turns](int call, int codebooks) mutable {
    args.weights = weights(call / turns, codebooks / turns);
    args.output_scales = at(output_scales, codebooks / turns);
    args.expert_rows = at(expert_rows, call);
    return args;
  };
}

// A call reads the weights of the experts that have rows.
LayerBytes LinearTraits::layer_bytes(const LinearData& data) {
  const std::int64_t codes = bytes_of(data.weights.codes);
  const std::int64_t experts = data.weights.heads;
  const std::int64_t touched = data.expert_rows.empty() ? 1 : std::ssize(experts_with_rows(data));
  return {codes / experts * touched, codes, codebook_bytes_of(data.weights) / experts * touched,
          static_cast<int>(experts / touched)};
}

}  // namespace vqgen

#include "runtime/ops/kv_dequantize/reference.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/parallel.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/basis.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

std::int64_t length_of(const AttentionData& data, std::int64_t head) {
  return data.lengths[static_cast<std::size_t>(head / data.keys.heads)];
}

// H of the format's rotation, [head_dim][head_dim]; empty without a rotation.
std::vector<double> rotation(const QuantizedTensor& tensor) {
  std::vector<double> all;
  if (!tensor.format.hadamard) return all;
  std::vector<double> unit(static_cast<std::size_t>(tensor.columns));
  for (double& each : unit) {
    each = 1;
    const std::vector<double> row = rotated(unit);
    all.insert(all.end(), row.begin(), row.end());
    each = 0;
  }
  return all;
}

// One tensor: its rows of tokens, [batch][kv_heads][rows][columns].
std::vector<double> rows_of(const AttentionData& data, const QuantizedTensor& tensor,
                            const std::vector<std::uint16_t>& raw) {
  const RowDecoder decoder(tensor);
  const std::vector<double> matrix = rotation(tensor);
  const std::int64_t dim = tensor.columns;
  const std::int64_t heads = data.batch * tensor.heads;
  const std::int64_t slots = data.raw_slots().count();
  std::vector<double> all(static_cast<std::size_t>(heads * tensor.rows * dim));
  const bool basis = has_basis(tensor.format);
  const std::int64_t work = std::ssize(all) * (matrix.empty() && !basis ? 1 : dim);
  const auto leave_basis = [&](double* row, std::int64_t head) {
    if (!basis) return;
    const std::vector<double> x =
        out_of_basis(tensor, head, std::span(row, static_cast<std::size_t>(dim)));
    std::copy(x.begin(), x.end(), row);
  };
  in_parallel(static_cast<std::size_t>(heads), reference_threads(work), [&](std::size_t number) {
    const auto head = static_cast<std::int64_t>(number);
    const std::int64_t sequence = head / tensor.heads;
    std::vector<double> coded(static_cast<std::size_t>(dim));
    for (std::int64_t token = 0; token < length_of(data, head); ++token) {
      double* const row = all.data() + (head * tensor.rows + token) * dim;
      const TokenPlace place = token_place(data, sequence, token);
      if (place != TokenPlace::codes) {
        const std::int64_t slot =
            place == TokenPlace::sink ? token : data.raw_slots().recent(token);
        const std::uint16_t* const bits = raw.data() + (head * slots + slot) * dim;
        for (std::int64_t i = 0; i < dim; ++i) row[i] = element_value(data.dtype, bits[i]);
        leave_basis(row, head % tensor.heads);
        continue;
      }
      decoder.decode(sequence, head % tensor.heads, token, coded);
      for (std::int64_t i = 0; i < dim; ++i) {
        const double of_channel = coded[static_cast<std::size_t>(i)];
        if (matrix.empty()) row[i] = of_channel;
        for (std::int64_t j = 0; j < dim && !matrix.empty(); ++j) {
          row[j] += of_channel * matrix[static_cast<std::size_t>(i * dim + j)];
        }
      }
      if (tensor.format.smooth) {
        const float* const smooth = tensor.smooth.data() + head % tensor.heads * dim;
        for (std::int64_t i = 0; i < dim; ++i) row[i] *= static_cast<double>(smooth[i]);
      }
      leave_basis(row, head % tensor.heads);
    }
  });
  return all;
}

// Judges one output; a fault's text begins with the output's name.
DequantizeVerdict judge(const AttentionData& data, const char* name, std::int64_t columns,
                        const std::vector<double>& reference,
                        const std::vector<std::uint16_t>& output) {
  require(reference.size() == output.size(), "decoded data: an output has another size");
  const std::int64_t row = data.keys.rows * columns;  // of a head
  std::vector<double> expected;
  std::vector<std::uint16_t> actual;
  std::string written;
  for (std::int64_t head = 0; head < data.batch * data.keys.heads; ++head) {
    const std::int64_t begin = head * row;
    const std::int64_t end = begin + length_of(data, head) * columns;
    expected.insert(expected.end(), reference.begin() + begin, reference.begin() + end);
    actual.insert(actual.end(), output.begin() + begin, output.begin() + end);
    const auto other = std::find_if(output.begin() + end, output.begin() + begin + row,
                                    [](std::uint16_t each) { return each != kUnwritten; });
    if (other == output.begin() + begin + row || !written.empty()) continue;
    written = fmt::format(
        "{}: token {} of sequence {}, head {} was written, but the sequence ends "
        "before it",
        name, (other - output.begin() - begin) / columns, head / data.keys.heads,
        head % data.keys.heads);
  }
  DequantizeVerdict verdict{compare(expected, actual, data.dtype), written};
  if (!verdict.comparison.ok) {
    verdict.why = fmt::format(
        "{}: element {} of those with a token is off by {:.2e} of its size, {} elements are not "
        "finite",
        name, verdict.comparison.worst, verdict.comparison.max_local_err,
        verdict.comparison.nonfinite_mismatches);
  }
  verdict.comparison.ok = verdict.why.empty();
  return verdict;
}

}  // namespace

DequantizeResult reference_dequantize(const AttentionData& data) {
  require(data.keys.batch == data.batch && data.values.batch == data.batch,
          "decoded data: keys or values are not of [batch]");
  require(std::ssize(data.lengths) == data.batch, "decoded data: lengths are not [batch]");
  return {rows_of(data, data.keys, data.raw_keys), rows_of(data, data.values, data.raw_values)};
}

DequantizeResult reference_decode_unquantized(const AttentionData& data) {
  const auto values = [&](const std::vector<std::uint16_t>& bits) {
    std::vector<double> all;
    for (const std::uint16_t each : bits) all.push_back(element_value(data.dtype, each));
    return all;
  };
  return {values(data.original_keys), values(data.original_values)};
}

DequantizeVerdict judge_dequantize(const AttentionData& data, const DequantizeResult& reference,
                                   const DequantizeOutput& output) {
  DequantizeVerdict keys = judge(data, "keys", data.keys.columns, reference.keys, output.keys);
  DequantizeVerdict values =
      judge(data, "values", data.values.columns, reference.values, output.values);
  const bool keys_worse = keys.comparison.ok != values.comparison.ok
                              ? !keys.comparison.ok
                              : keys.comparison.rel_err >= values.comparison.rel_err;
  return keys_worse ? std::move(keys) : std::move(values);
}

}  // namespace vqgen

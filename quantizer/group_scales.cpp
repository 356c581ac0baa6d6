#include "quantizer/group_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "quantizer/pack.h"

namespace vqgen {
namespace {

float half_at(std::span<const std::uint32_t> words, std::size_t number) {
  const std::uint32_t bits = words[number / 2] >> number % 2 * 16 & 0xffffu;
  return element_to_float(DType::f16, static_cast<std::uint16_t>(bits));
}

// Adds f16s to a row's words, two to a word.
void put_halves(std::span<const std::uint16_t> halves, std::span<std::uint32_t> words) {
  for (std::size_t i = 0; i < halves.size(); ++i) {
    words[i / 2] |= std::uint32_t{halves[i]} << i % 2 * 16;
  }
}

std::uint16_t half_of(float value, const std::string& name) {
  const std::uint16_t bits = element_from_float(DType::f16, value);
  if (!std::isfinite(element_to_float(DType::f16, bits))) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}: the scale {} of a group of inputs is beyond f16; set output_scales", name,
                    value));
  }
  return bits;
}

// The scale of each group of a row that brings `numbers` nearest to `values`.
std::vector<float> fitting_scales(const VqFormat& format, std::span<const float> values,
                                  std::span<const float> numbers) {
  const auto size = static_cast<std::size_t>(format.group_inputs);
  std::vector<float> scales;
  for (std::size_t first = 0; first < values.size(); first += size) {
    double both = 0, squares = 0;
    for (std::size_t i = first; i < first + size; ++i) {
      both += double{values[i]} * double{numbers[i]};
      squares += double{numbers[i]} * double{numbers[i]};
    }
    scales.push_back(both > 0 ? static_cast<float>(both / squares) : 0.0f);
  }
  return scales;
}

double squared_error(std::span<const float> values, std::span<const float> numbers,
                     std::span<const float> scales) {
  const std::size_t size = values.size() / scales.size();
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double miss = double{values[i]} - double{scales[i / size]} * double{numbers[i]};
    sum += miss * miss;
  }
  return sum;
}

}  // namespace

std::vector<float> group_scales(const VqFormat& format, std::int64_t inputs,
                                std::span<const std::uint32_t> words) {
  const vq::GroupScales groups = format.group_scales();
  const auto own = words.subspan(words.size() - static_cast<std::size_t>(groups.words(inputs)));
  std::vector<float> scales(static_cast<std::size_t>(inputs / groups.inputs));
  if (groups.bits == 0) {
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = half_at(own, i);
    return scales;
  }
  std::vector<std::uint32_t> numbers(scales.size());
  unpack_row(own, groups.bits, numbers);
  const auto blocks = own.subspan(static_cast<std::size_t>(groups.packed_words(inputs)));
  const std::size_t of_block = scales.size() * vq::kBlockInputs / static_cast<std::size_t>(inputs);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = half_at(blocks, i / of_block) * static_cast<float>(2 * numbers[i] + 1);
  }
  return scales;
}

std::vector<std::uint32_t> group_scale_words(const VqFormat& format, std::span<const float> wanted,
                                             const std::string& name) {
  const vq::GroupScales groups = format.group_scales();
  const std::int64_t inputs = std::ssize(wanted) * groups.inputs;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(groups.words(inputs)));
  std::vector<std::uint16_t> halves;
  if (groups.bits == 0) {
    for (const float scale : wanted) halves.push_back(half_of(scale, name));
    put_halves(halves, words);
    return words;
  }
  const auto of_block = static_cast<std::size_t>(vq::kBlockInputs / groups.inputs);
  const float most = static_cast<float>((2 << groups.bits) - 1);
  std::vector<std::uint32_t> numbers(wanted.size());
  for (std::size_t block = 0; block < wanted.size() / of_block; ++block) {
    const auto own = wanted.subspan(block * of_block, of_block);
    halves.push_back(half_of(*std::max_element(own.begin(), own.end()) / most, name));
    const float d = element_to_float(DType::f16, halves.back());
    for (std::size_t i = 0; i < of_block && d > 0; ++i) {
      const float s = std::clamp(std::round((own[i] / d - 1) / 2), 0.0f, (most - 1) / 2);
      numbers[block * of_block + i] = static_cast<std::uint32_t>(s);
    }
  }
  put_group_scales(format, numbers, halves, words);
  return words;
}

void put_group_scales(const VqFormat& format, std::span<const std::uint32_t> numbers,
                      std::span<const std::uint16_t> blocks, std::span<std::uint32_t> words) {
  const vq::GroupScales groups = format.group_scales();
  const std::int64_t inputs = std::ssize(numbers) * groups.inputs;
  pack_row(numbers, groups.bits, words);
  put_halves(blocks, words.subspan(static_cast<std::size_t>(groups.packed_words(inputs))));
}

FloatTensor in_groups(FloatTensor values, const VqFormat& format, const std::string& name,
                      std::vector<std::uint32_t>* words) {
  if (const std::optional<FormatFault> fault = groups_fault(format, values.columns)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {}: {}", name, fault->field, fault->message));
  }
  const auto size = static_cast<std::size_t>(format.group_inputs);
  std::vector<float> wanted(static_cast<std::size_t>(values.columns) / size);
  for (std::int64_t index = 0; index < values.row_count(); ++index) {
    const auto row = values.row(index);
    for (std::size_t group = 0; group < wanted.size(); ++group) {
      double sum = 0;
      for (const float value : row.subspan(group * size, size)) sum += double{value} * value;
      wanted[group] = static_cast<float>(std::sqrt(sum / static_cast<double>(size)));
    }
    const std::vector<std::uint32_t> of_row = group_scale_words(format, wanted, name);
    const std::vector<float> scales = group_scales(format, values.columns, of_row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float scale = scales[i / size];
      row[i] = scale > 0 ? row[i] / scale : 0.0f;
    }
    if (words != nullptr) words->insert(words->end(), of_row.begin(), of_row.end());
  }
  return values;
}

QuantizedTensor encode_groups(const FloatTensor& values, Codebooks codebooks) {
  const VqFormat format = codebooks.format;
  codebooks.format.layout = {};
  codebooks.format.group_inputs = codebooks.format.group_scale_bits = 0;
  std::vector<std::uint32_t> words;
  QuantizedTensor result = encode(in_groups(values, format, "encode", &words), codebooks);
  const FloatTensor numbers = decode(result);
  const std::int64_t of_row = format.group_scales().words(values.columns);
  std::vector<std::uint32_t> codes;
  for (std::int64_t row = 0; row < values.row_count(); ++row) {
    const auto first = std::span(words).subspan(static_cast<std::size_t>(row * of_row),
                                                static_cast<std::size_t>(of_row));
    const std::vector<std::uint32_t> fitted = group_scale_words(
        format, fitting_scales(format, values.row(row), numbers.row(row)), "encode");
    const auto error = [&](std::span<const std::uint32_t> of) {
      return squared_error(values.row(row), numbers.row(row),
                           group_scales(format, values.columns, of));
    };
    const auto of_codes = result.codes.begin() + row * result.row_words;
    codes.insert(codes.end(), of_codes, of_codes + result.row_words);
    const auto taken = error(fitted) < error(first) ? std::span(fitted) : first;
    codes.insert(codes.end(), taken.begin(), taken.end());
  }
  result.codes = std::move(codes);
  result.row_words += of_row;
  result.format = without_layout(format);
  repack(result, format.layout);
  return result;
}

void multiply_groups(FloatTensor& values, const QuantizedTensor& tensor) {
  QuantizedTensor plain = tensor;
  repack(plain, {});
  const auto words = static_cast<std::size_t>(plain.row_words);
  for (std::int64_t index = 0; index < values.row_count(); ++index) {
    const std::vector<float> scales = group_scales(
        tensor.format, tensor.columns,
        std::span(plain.codes).subspan(static_cast<std::size_t>(index) * words, words));
    const auto row = values.row(index);
    const std::size_t size = row.size() / scales.size();
    for (std::size_t i = 0; i < row.size(); ++i) row[i] *= scales[i / size];
  }
}

}  // namespace vqgen

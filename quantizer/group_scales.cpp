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

std::uint16_t half_of(float value, const char* what, const std::string& name) {
  const std::uint16_t bits = element_from_float(DType::f16, value);
  if (!std::isfinite(element_to_float(DType::f16, bits))) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: the {} {} of a group of inputs is beyond f16; set output_scales",
                            name, what, value));
  }
  return bits;
}

// The factor that brings `numbers` nearest to `values`, both of a group.
GroupFactor fitting_factor(bool minimum, std::span<const float> values,
                           std::span<const float> numbers) {
  double value = 0, number = 0;  // their means, where a minimum moves one to the other
  for (std::size_t i = 0; minimum && i < values.size(); ++i) {
    value += double{values[i]} / static_cast<double>(values.size());
    number += double{numbers[i]} / static_cast<double>(values.size());
  }
  double both = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    both += (values[i] - value) * (numbers[i] - number);
    squares += (numbers[i] - number) * (numbers[i] - number);
  }
  const double scale = both > 0 ? both / squares : 0;
  return {static_cast<float>(scale), static_cast<float>(scale * number - value)};
}

std::vector<GroupFactor> fitting_factors(const VqFormat& format, std::span<const float> values,
                                         std::span<const float> numbers) {
  const auto size = static_cast<std::size_t>(format.group_inputs);
  std::vector<GroupFactor> factors;
  for (std::size_t first = 0; first < values.size(); first += size) {
    factors.push_back(fitting_factor(format.group_minima, values.subspan(first, size),
                                     numbers.subspan(first, size)));
  }
  return factors;
}

// What in_groups() wants for the values of a group.
GroupFactor factor_of(const VqFormat& format, std::span<const float> values) {
  GroupFactor factor;
  if (format.group_minima) factor.minimum = -*std::ranges::min_element(values);
  if (format.group_scale_bits > 0) factor.minimum = std::max(factor.minimum, 0.0f);
  double sum = 0;
  for (const float value : values) {
    const double number = double{value} + factor.minimum;
    sum += number * number;
  }
  factor.scale = static_cast<float>(std::sqrt(sum / static_cast<double>(values.size())));
  return factor;
}

double squared_error(std::span<const float> values, std::span<const float> numbers,
                     std::span<const GroupFactor> factors) {
  const std::size_t size = values.size() / factors.size();
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const GroupFactor& factor = factors[i / size];
    const double miss =
        double{values[i]} - (double{factor.scale} * double{numbers[i]} - double{factor.minimum});
    sum += miss * miss;
  }
  return sum;
}

}  // namespace

std::vector<GroupFactor> group_factors(const VqFormat& format, std::int64_t inputs,
                                       std::span<const std::uint32_t> words) {
  const vq::GroupScales groups = format.group_scales();
  const auto own = words.subspan(words.size() - static_cast<std::size_t>(groups.words(inputs)));
  const std::size_t each = groups.minima ? 2 : 1;
  std::vector<GroupFactor> factors(static_cast<std::size_t>(inputs / groups.inputs));
  if (groups.bits == 0) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      factors[i].scale = half_at(own, each * i);
      if (groups.minima) factors[i].minimum = half_at(own, each * i + 1);
    }
    return factors;
  }
  std::vector<std::uint32_t> numbers(factors.size());
  unpack_row(own, groups.group_bits(), numbers);
  const auto blocks = own.subspan(static_cast<std::size_t>(groups.packed_words(inputs)));
  const std::size_t of_block = factors.size() * vq::kBlockInputs / static_cast<std::size_t>(inputs);
  const std::uint32_t low = (1u << groups.bits) - 1;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t half = each * (i / of_block);
    if (groups.minima) {
      factors[i] = {half_at(blocks, half) * static_cast<float>(numbers[i] & low),
                    half_at(blocks, half + 1) * static_cast<float>(numbers[i] >> groups.bits)};
    } else {
      factors[i].scale = half_at(blocks, half) * static_cast<float>(2 * numbers[i] + 1);
    }
  }
  return factors;
}

std::vector<std::uint32_t> group_factor_words(const VqFormat& format,
                                              std::span<const GroupFactor> wanted,
                                              const std::string& name) {
  const vq::GroupScales groups = format.group_scales();
  const std::int64_t inputs = std::ssize(wanted) * groups.inputs;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(groups.words(inputs)));
  std::vector<std::uint16_t> halves;
  if (groups.bits == 0) {
    for (const GroupFactor& factor : wanted) {
      halves.push_back(half_of(factor.scale, "scale", name));
      if (groups.minima) halves.push_back(half_of(factor.minimum, "minimum", name));
    }
    put_halves(halves, words);
    return words;
  }
  const auto of_block = static_cast<std::size_t>(vq::kBlockInputs / groups.inputs);
  const int last = (1 << groups.bits) - 1;
  std::vector<std::uint32_t> numbers(wanted.size());
  // Numbers n of a block from bit `shift` on, and their f16 d, for terms d (first + step n).
  const auto put = [&](std::size_t begin, float GroupFactor::*term, int first, int step,
                       int shift) {
    const auto own = wanted.subspan(begin, of_block);
    float largest = 0;
    for (const GroupFactor& factor : own) largest = std::max(largest, factor.*term);
    halves.push_back(half_of(largest / static_cast<float>(first + step * last),
                             shift == 0 ? "scale" : "minimum", name));
    const float d = element_to_float(DType::f16, halves.back());
    for (std::size_t i = 0; i < of_block && d > 0; ++i) {
      const float number =
          std::round((own[i].*term / d - static_cast<float>(first)) / static_cast<float>(step));
      const float held = std::clamp(number, 0.0f, static_cast<float>(last));
      numbers[begin + i] |= static_cast<std::uint32_t>(held) << shift;
    }
  };
  for (std::size_t begin = 0; begin < wanted.size(); begin += of_block) {
    if (groups.minima) {
      put(begin, &GroupFactor::scale, 0, 1, 0);
      put(begin, &GroupFactor::minimum, 0, 1, groups.bits);
    } else {
      put(begin, &GroupFactor::scale, 1, 2, 0);
    }
  }
  put_group_factors(format, numbers, halves, words);
  return words;
}

void put_group_factors(const VqFormat& format, std::span<const std::uint32_t> numbers,
                       std::span<const std::uint16_t> blocks, std::span<std::uint32_t> words) {
  const vq::GroupScales groups = format.group_scales();
  const std::int64_t inputs = std::ssize(numbers) * groups.inputs;
  pack_row(numbers, groups.group_bits(),
           words.first(static_cast<std::size_t>(groups.packed_words(inputs))));
  put_halves(blocks, words.subspan(static_cast<std::size_t>(groups.packed_words(inputs))));
}

FloatTensor in_groups(FloatTensor values, const VqFormat& format, const std::string& name,
                      std::vector<std::uint32_t>* words) {
  if (const std::optional<FormatFault> fault = groups_fault(format, values.columns)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {}: {}", name, fault->field, fault->message));
  }
  const auto size = static_cast<std::size_t>(format.group_inputs);
  std::vector<GroupFactor> wanted(static_cast<std::size_t>(values.columns) / size);
  for (std::int64_t index = 0; index < values.row_count(); ++index) {
    const auto row = values.row(index);
    for (std::size_t group = 0; group < wanted.size(); ++group) {
      wanted[group] = factor_of(format, row.subspan(group * size, size));
    }
    const std::vector<std::uint32_t> of_row = group_factor_words(format, wanted, name);
    const std::vector<GroupFactor> factors = group_factors(format, values.columns, of_row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const GroupFactor& factor = factors[i / size];
      row[i] = factor.scale > 0 ? (row[i] + factor.minimum) / factor.scale : 0.0f;
    }
    if (words != nullptr) words->insert(words->end(), of_row.begin(), of_row.end());
  }
  return values;
}

QuantizedTensor encode_groups(const FloatTensor& values, Codebooks codebooks) {
  const VqFormat format = codebooks.format;
  codebooks.format.layout = {};
  codebooks.format.group_inputs = codebooks.format.group_scale_bits = 0;
  codebooks.format.group_minima = false;
  std::vector<std::uint32_t> words;
  QuantizedTensor result = encode(in_groups(values, format, "encode", &words), codebooks);
  const FloatTensor numbers = decode(result);
  const std::int64_t of_row = format.group_scales().words(values.columns);
  std::vector<std::uint32_t> codes;
  for (std::int64_t row = 0; row < values.row_count(); ++row) {
    const auto first = std::span(words).subspan(static_cast<std::size_t>(row * of_row),
                                                static_cast<std::size_t>(of_row));
    const std::vector<std::uint32_t> fitted = group_factor_words(
        format, fitting_factors(format, values.row(row), numbers.row(row)), "encode");
    const auto error = [&](std::span<const std::uint32_t> of) {
      return squared_error(values.row(row), numbers.row(row),
                           group_factors(format, values.columns, of));
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

void apply_groups(FloatTensor& values, const QuantizedTensor& tensor) {
  QuantizedTensor plain = tensor;
  repack(plain, {});
  const auto words = static_cast<std::size_t>(plain.row_words);
  for (std::int64_t index = 0; index < values.row_count(); ++index) {
    const std::vector<GroupFactor> factors = group_factors(
        tensor.format, tensor.columns,
        std::span(plain.codes).subspan(static_cast<std::size_t>(index) * words, words));
    const auto row = values.row(index);
    const std::size_t size = row.size() / factors.size();
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = factors[i / size].apply(row[i]);
  }
}

}  // namespace vqgen

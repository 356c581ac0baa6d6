#include "runtime/ops/scalar/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/verify/random.h"

namespace vqgen {
namespace {

constexpr float kPeak = 127;

std::uint8_t code_of(float value, float scale) {
  const float steps = value / scale;
  if (!(steps > -kPeak)) return static_cast<std::uint8_t>(-127);
  return static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(std::min(steps, kPeak))));
}

std::vector<float> scales_of(const ScalarData& data) {
  std::vector<float> most(static_cast<std::size_t>(data.channels));
  for (std::int64_t t = 0; t < data.tokens; ++t) {
    for (std::size_t c = 0; c < most.size(); ++c) {
      const auto at = static_cast<std::size_t>(t * data.channels) + c;
      const float magnitude = std::abs(real_value(data.dtype, data.elements, at));
      if (std::isfinite(magnitude)) most[c] = std::max(most[c], magnitude);
    }
  }
  for (float& each : most) {
    each /= kPeak;
    if (each < std::numeric_limits<float>::min()) each = 1;
  }
  return most;
}

template <class T>
void compare_bits(const char* what, const std::vector<T>& reference, const std::vector<T>& output,
                  std::int64_t channels, std::size_t size, ScalarVerdict& verdict) {
  if (reference.size() != output.size()) {
    verdict.ok = false;
    verdict.why = fmt::format("{} {} instead of {}", output.size(), what, reference.size());
    return;
  }
  for (std::size_t at = 0; at + size <= reference.size(); at += size) {
    if (std::memcmp(&reference[at], &output[at], size * sizeof(T)) == 0) continue;
    if (verdict.ok) {
      const auto number = static_cast<std::int64_t>(at / size);
      verdict.why = fmt::format("the first of {} that is wrong is of token {}, channel {}", what,
                                number / channels, number % channels);
    }
    verdict.ok = false;
    ++verdict.wrong;
  }
}

}  // namespace

float real_value(vq::Real dtype, const std::vector<std::uint8_t>& bits, std::size_t at) {
  if (dtype == vq::Real::f32) {
    float value;
    std::memcpy(&value, &bits[4 * at], 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, &bits[2 * at], 2);
  return element_to_float(dtype == vq::Real::f16 ? DType::f16 : DType::bf16, half);
}

void put_real(vq::Real dtype, std::vector<std::uint8_t>& bits, std::size_t at, float value) {
  if (dtype == vq::Real::f32) {
    std::memcpy(&bits[4 * at], &value, 4);
    return;
  }
  const std::uint16_t half =
      element_from_float(dtype == vq::Real::f16 ? DType::f16 : DType::bf16, value);
  std::memcpy(&bits[2 * at], &half, 2);
}

ScalarResult reference_scalar(const ScalarData& data) {
  ScalarResult result{data.elements, data.codes,
                      data.computes_scales ? scales_of(data) : data.scales};
  const auto channels = static_cast<std::size_t>(data.channels);
  const std::size_t all = static_cast<std::size_t>(data.tokens) * channels;
  if (data.decodes) {
    result.elements.resize(all * static_cast<std::size_t>(data.element_bytes()));
    for (std::size_t at = 0; at < all; ++at) {
      put_real(data.dtype, result.elements, at,
               static_cast<float>(static_cast<std::int8_t>(data.codes[at])) *
                   result.scales[at % channels]);
    }
  } else {
    result.codes.resize(all);
    for (std::size_t at = 0; at < all; ++at) {
      result.codes[at] =
          code_of(real_value(data.dtype, data.elements, at), result.scales[at % channels]);
    }
  }
  return result;
}

ScalarVerdict judge_scalar(const ScalarData& data, const ScalarResult& reference,
                           const ScalarResult& output) {
  ScalarVerdict verdict;
  compare_bits("scales", reference.scales, output.scales, data.channels, 1, verdict);
  if (data.decodes) {
    compare_bits("elements", reference.elements, output.elements, data.channels,
                 static_cast<std::size_t>(data.element_bytes()), verdict);
  } else {
    compare_bits("codes", reference.codes, output.codes, data.channels, 1, verdict);
  }
  if (!verdict.ok) verdict.why += fmt::format("; {} are wrong in all", verdict.wrong);
  return verdict;
}

std::int64_t clamped_elements(const ScalarData& data, const ScalarResult& result) {
  const auto channels = static_cast<std::size_t>(data.channels);
  const std::size_t all = static_cast<std::size_t>(data.tokens) * channels;
  std::int64_t count = 0;
  for (std::size_t at = 0; at < all; ++at) {
    const float value = real_value(data.dtype, data.elements, at);
    count += std::isfinite(value) && std::abs(value / result.scales[at % channels]) > kPeak + 0.5f;
  }
  return count;
}

ScalarErrors round_trip_errors(const ScalarData& data, const ScalarResult& result) {
  const auto channels = static_cast<std::size_t>(data.channels);
  const std::size_t all = static_cast<std::size_t>(data.tokens) * channels;
  std::vector<float> original(all);
  std::vector<float> restored(all);
  for (std::size_t at = 0; at < all; ++at) {
    original[at] = real_value(data.dtype, data.elements, at);
    restored[at] = data.decodes ? real_value(data.dtype, result.elements, at)
                                : static_cast<float>(static_cast<std::int8_t>(result.codes[at])) *
                                      result.scales[at % channels];
  }
  Random random(1);
  std::vector<float> query(channels);
  for (float& each : query) each = static_cast<float>(random.uniform(-1, 1));
  return scalar_errors(original.data(), restored.data(), data.tokens, data.channels, query.data(),
                       1);
}

ScalarErrors scalar_errors(const float* original, const float* restored, std::int64_t tokens,
                           std::int64_t channels, const float* queries, std::int64_t query_count) {
  ScalarErrors errors;
  double squares = 0;
  double scores = 0;
  std::vector<double> off(static_cast<std::size_t>(channels));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto at = static_cast<std::size_t>(t * channels + c);
      const double each = static_cast<double>(original[at]) - static_cast<double>(restored[at]);
      off[static_cast<std::size_t>(c)] = each;
      squares += each * each;
      if (!(std::abs(each) <= errors.largest)) errors.largest = std::abs(each);
    }
    for (std::int64_t q = 0; q < query_count; ++q) {
      double score = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        score += static_cast<double>(queries[q * channels + c]) * off[static_cast<std::size_t>(c)];
      }
      scores += std::abs(score);
    }
  }
  errors.l2 = std::sqrt(squares);
  if (std::isnan(errors.l2)) errors.largest = errors.l2;
  const double count = static_cast<double>(tokens) * static_cast<double>(query_count);
  if (count > 0) errors.mean_score = scores / count;
  return errors;
}

}  // namespace vqgen

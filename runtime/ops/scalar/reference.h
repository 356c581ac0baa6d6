// int8_quantize and int8_dequantize on the host, to the bit; the data that kernels are judged on;
// and the study's three measures of what quantization loses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// The matrix of one call; codes and elements are [tokens][channels]. If the call dequantizes,
// elements are what the codes were made from. Codes and scales that the call makes are empty.
struct ScalarData {
  vq::Real dtype = vq::Real::f16;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;
  bool decodes = false;
  bool computes_scales = false;
  std::vector<std::uint8_t> elements;  // bits of dtype, lowest byte first
  std::vector<std::uint8_t> codes;     // signed
  std::vector<float> scales;           // [channels]

  std::int64_t element_bytes() const { return dtype == vq::Real::f32 ? 4 : 2; }
};

// The arrays of a call, those that it read and those that it wrote, in ScalarData's layout.
struct ScalarResult {
  std::vector<std::uint8_t> elements;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

// Reads element number `at` from bits of `dtype`, or writes it there, rounded to nearest even.
float real_value(vq::Real dtype, const std::vector<std::uint8_t>& bits, std::size_t at);
void put_real(vq::Real dtype, std::vector<std::uint8_t>& bits, std::size_t at, float value);

// The definition, to the bit; each operation is in fp32, and codes are within -127 .. 127.
//   scale = max |x| / 127 over the channel's finite elements; 1 if that is not a normal number
//   code  = x / scale, rounded to nearest even (-127 for NaN); x' = code * scale, rounded
ScalarResult reference_scalar(const ScalarData& data);

struct ScalarVerdict {
  bool ok = true;
  std::int64_t wrong = 0;  // codes, elements and scales that differ in a bit
  std::string why;         // the first difference; empty if ok
};
ScalarVerdict judge_scalar(const ScalarData& data, const ScalarResult& reference,
                           const ScalarResult& output);

// The study's measures (section 1, figure 4) of `restored` against `original`, both
// [tokens][channels]: the L2 and the largest difference, and the mean of |q.x - q.x'| over tokens
// and queries [queries][channels], 0 without queries. Sums are doubles. Non-finite elements spread.
struct ScalarErrors {
  double l2 = 0;
  double largest = 0;
  double mean_score = 0;
};
ScalarErrors scalar_errors(const float* original, const float* restored, std::int64_t tokens,
                           std::int64_t channels, const float* queries, std::int64_t query_count);

// Counts finite elements of `data` whose code is the largest because their scale in `result` is too
// small: they are more than half a step beyond it.
std::int64_t clamped_elements(const ScalarData& data, const ScalarResult& result);

// Errors between the elements of `data` and the fp32 values of its codes and scales in `result`, or
// the dequantized elements, with one query uniform in [-1, 1].
ScalarErrors round_trip_errors(const ScalarData& data, const ScalarResult& result);

// full: elements uniform in [-1, 1]. ragged: channels of zeros, one number, tiny and large ones,
// ties, NaN and infinities; given scales that clamp; codes that no quantizer writes. input.codes
// has no meaning. Throws Error(device) if the machine's memory does not hold a run.
ScalarData make_scalar_data(const ScalarMatrix& problem, const HardInput& input);

}  // namespace vqgen

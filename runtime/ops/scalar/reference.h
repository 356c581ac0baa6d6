// int8_quantize and int8_dequantize on the host, to the bit; the data that kernels are judged
// on; and the study's three measures of what quantization loses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// The matrix of one call. Codes and elements are [tokens][channels]. Where the call dequantizes,
// elements are what the codes were made of; codes and scales that it makes are empty.
struct ScalarData {
  vq::Real dtype = vq::Real::f16;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;
  bool decodes = false;
  bool computes_scales = false;
  std::vector<std::uint8_t> elements;  // bits of dtype, the lowest byte first
  std::vector<std::uint8_t> codes;     // signed
  std::vector<float> scales;           // [channels]

  std::int64_t element_bytes() const { return dtype == vq::Real::f32 ? 4 : 2; }
};

// What a call leaves: what it read and what it wrote, laid out likewise.
struct ScalarResult {
  std::vector<std::uint8_t> elements;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

// Element number `at` of bits of `dtype`, and its bits put there, rounded to nearest even.
float real_value(vq::Real dtype, const std::vector<std::uint8_t>& bits, std::size_t at);
void put_real(vq::Real dtype, std::vector<std::uint8_t>& bits, std::size_t at, float value);

//   scale = max |x| / 127 over the channel's finite elements, 1 where that is no normal number
//   code  = x / scale, rounded to nearest even, within -127 .. 127; of NaN -127
//   x'    = code * scale, rounded to the element type
//
// each operation in fp32: the definition, to the bit.
ScalarResult reference_scalar(const ScalarData& data);

struct ScalarVerdict {
  bool ok = true;
  std::int64_t wrong = 0;  // codes, elements and scales that differ in a bit
  std::string why;         // the first of them, empty where ok
};
ScalarVerdict judge_scalar(const ScalarData& data, const ScalarResult& reference,
                           const ScalarResult& output);

// The study's measures (section 1 and figure 4) of `restored` against `original`, both
// [tokens][channels] in fp32: the root of the summed squares of the differences, the largest of
// them, and the mean over tokens and queries of |q.x - q.x'|, queries [queries][channels], 0 of
// none. Sums are doubles. What is not finite makes its measures so.
struct ScalarErrors {
  double l2 = 0;
  double largest = 0;
  double mean_score = 0;
};
ScalarErrors scalar_errors(const float* original, const float* restored, std::int64_t tokens,
                           std::int64_t channels, const float* queries, std::int64_t query_count);

// Finite elements of `data` whose code is the largest because their scale in `result` is too small:
// they are more than half a step beyond it.
std::int64_t clamped_elements(const ScalarData& data, const ScalarResult& result);

// Of the elements of `data` and what its codes and scales in `result` are worth in fp32, or the
// elements that these became, with one query uniform in [-1, 1].
ScalarErrors round_trip_errors(const ScalarData& data, const ScalarResult& result);

// lengths full: elements uniform in [-1, 1]. ragged: channels of zeros, of one number, of tiny and
// of large ones, and of ties; NaN and infinities among them; given scales that clamp, codes that no
// quantizer writes. input.codes has no meaning here. Error(device) where the machine's memory does
// not hold a run.
ScalarData make_scalar_data(const ScalarMatrix& problem, const HardInput& input);

}  // namespace vqgen

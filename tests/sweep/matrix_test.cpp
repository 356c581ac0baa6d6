// int8_quantize and int8_dequantize beside the sweep: the study's four forms, the splits and a
// second run give equal bits; the bounds of its measures; every 8-bit code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "heuristics/choose.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {
namespace {

Int8Quantize quantize_of(vq::Real dtype, std::int64_t tokens, int channels, Scales scales) {
  Int8Quantize op;
  op.dtype = dtype;
  op.shape = {.tokens = tokens, .channels = channels, .scales = scales};
  return op;
}

Int8Dequantize dequantize_of(vq::Real dtype, std::int64_t tokens, int channels) {
  Int8Dequantize op;
  op.dtype = dtype;
  op.shape = {.tokens = tokens, .channels = channels};
  return op;
}

constexpr std::array kForms{
    ScalarForms{.form = ScalarForm::naive, .threads = 64, .lanes = 16, .vector = 1, .tokens = 1},
    ScalarForms{.form = ScalarForm::tiled, .threads = 64, .lanes = 16, .vector = 1, .tokens = 1},
    ScalarForms{
        .form = ScalarForm::coarsened, .threads = 64, .lanes = 16, .vector = 1, .tokens = 4},
    ScalarForms{
        .form = ScalarForm::vectorized, .threads = 64, .lanes = 16, .vector = 4, .tokens = 2}};

class Matrix : public SweepTest<> {
 protected:
  ScalarResult run(const Problem& problem, const Plan& plan, const ScalarData& data) {
    const Verdict verdict = check(plan, problem, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), problem, plan, sweep_gpu()).run(data);
  }
};

void expect_same_result(const ScalarResult& a, const ScalarResult& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.elements, b.elements);
  ASSERT_EQ(a.scales.size(), b.scales.size());
  EXPECT_EQ(std::memcmp(a.scales.data(), b.scales.data(), a.scales.size() * sizeof(float)), 0);
}

TEST_F(Matrix, TheFourFormsGiveTheReferencesBits) {
  for (const vq::Real dtype : a_third({vq::Real::f32, vq::Real::f16, vq::Real::bf16})) {
    const Int8Quantize quantize = quantize_of(dtype, 75, 72, Scales::computed);
    const ScalarData data =
        make_scalar_data(quantize, {.seed = 3, .lengths = LengthPattern::ragged});
    const ScalarResult reference = reference_scalar(data);
    const Int8Dequantize dequantize = dequantize_of(dtype, 75, 72);
    ScalarData codes = data;
    codes.decodes = true;
    codes.computes_scales = false;
    codes.codes = reference.codes;
    codes.scales = reference.scales;
    const ScalarResult restored = reference_scalar(codes);
    for (ScalarForms plan : kForms) {
      expect_same_result(run(dequantize, plan, codes), restored);
      for (const int splits : {1, 3, 16}) {
        plan.splits = splits;
        expect_same_result(run(quantize, plan, data), reference);
      }
    }
  }
}

TEST_F(Matrix, EveryCodeComesBackAsItsMultipleOfTheScale) {
  const Int8Dequantize op = dequantize_of(vq::Real::f32, 256, 4);
  ScalarData data;
  data.dtype = op.dtype;
  data.tokens = 256;
  data.channels = 4;
  data.decodes = true;
  data.scales = {1.0f, 0.1f, 1e-30f, 3e36f};
  for (int code = 0; code < 256; ++code) {
    data.codes.insert(data.codes.end(), 4, static_cast<std::uint8_t>(code));
  }
  const ScalarResult output = run(op, kForms[3], data);
  for (int code = 0; code < 256; ++code) {
    for (std::size_t c = 0; c < 4; ++c) {
      const auto at = static_cast<std::size_t>(code) * 4 + c;
      EXPECT_EQ(real_value(op.dtype, output.elements, at),
                static_cast<float>(static_cast<std::int8_t>(code)) * data.scales[c]);
    }
  }
}

TEST_F(Matrix, HandMadeChannels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Channels: zeros; one number; ties; non-finite values; nothing finite; below the least normal
  // scale.
  const std::vector<std::vector<float>> tokens{{0.0f, -2.5f, 127.0f, 63.5f, nan, 1e-38f},
                                               {-0.0f, -2.5f, 0.5f, nan, kInfinity, 0.0f},
                                               {0.0f, -2.5f, 1.5f, kInfinity, -kInfinity, -1e-38f},
                                               {0.0f, -2.5f, -2.5f, -kInfinity, nan, 1e-45f}};
  const Int8Quantize op = quantize_of(vq::Real::f32, 4, 6, Scales::computed);
  ScalarData data;
  data.dtype = op.dtype;
  data.tokens = 4;
  data.channels = 6;
  data.computes_scales = true;
  data.elements.resize(4 * 6 * 4);
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t c = 0; c < 6; ++c) put_real(op.dtype, data.elements, t * 6 + c, tokens[t][c]);
  }
  const std::vector<std::vector<int>> codes{{0, -127, 127, 127, -127, 0},
                                            {0, -127, 0, -127, 127, 0},
                                            {0, -127, 2, 127, -127, 0},
                                            {0, -127, -2, -127, -127, 0}};
  for (const ScalarForms& plan : kForms) {
    const ScalarResult output = run(op, plan, data);
    EXPECT_EQ(output.scales, (std::vector<float>{1, 2.5f / 127, 1, 0.5f, 1, 1}));
    for (std::size_t t = 0; t < 4; ++t) {
      for (std::size_t c = 0; c < 6; ++c) {
        EXPECT_EQ(static_cast<std::int8_t>(output.codes[t * 6 + c]), codes[t][c]) << t << " " << c;
      }
    }
  }
}

// Kernels multiply by reciprocals, but divide for values next to ties and for scales that are not
// normal.
TEST_F(Matrix, NumbersNextToTiesRoundAsQuotientsDo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Int8Quantize op = quantize_of(vq::Real::f32, 254 * 5, 12, Scales::given);
  ScalarData data;
  data.dtype = op.dtype;
  data.tokens = op.shape.tokens;
  data.channels = op.shape.channels;
  data.scales = {1.0f,      1.0f / 127, 0.1f, 3e-7f, 7e30f,     1.3e38f,
                 0x1p-126f, 1e-40f,     0.0f, -0.3f, kInfinity, nan};
  data.elements.resize(static_cast<std::size_t>(data.tokens) * 12 * 4);
  for (std::size_t t = 0; t < 254 * 5; ++t) {
    const float tie = static_cast<float>(t / 5) - 126.5f;
    for (std::size_t c = 0; c < 12; ++c) {
      const float scale = std::isfinite(data.scales[c]) ? data.scales[c] : 1.0f;
      float value = tie * scale;
      for (std::size_t step = t % 5; step > 2; --step) value = std::nextafter(value, kInfinity);
      for (std::size_t step = t % 5; step < 2; ++step) value = std::nextafter(value, -kInfinity);
      put_real(op.dtype, data.elements, t * 12 + c, value);
    }
  }
  const ScalarResult reference = reference_scalar(data);
  for (const ScalarForms& plan : kForms) expect_same_result(run(op, plan, data), reference);
}

// The study's figures: an error of 0.00394 for [-1, 1], by the bound of half a step, and a mean
// score error of 0.095 at 8192 channels.
TEST_F(Matrix, TheStudysMeasuresHold) {
  const Int8Quantize op = quantize_of(vq::Real::f32, 64, 8192, Scales::computed);
  const ScalarData data = make_scalar_data(op, {.seed = 5});
  const Plan plan = choose(op, sweep_gpu(), {.chooser = Chooser::rules});
  const ScalarErrors errors = round_trip_errors(data, run(op, plan, data));
  EXPECT_LE(errors.largest, 0.00394);
  EXPECT_GT(errors.largest, 0.0039);
  EXPECT_LT(errors.mean_score, 0.1);
  EXPECT_GT(errors.mean_score, 0.05);
  // Uniform errors within half a step have a mean square of a step's square over 12.
  EXPECT_NEAR(errors.l2, std::sqrt(64.0 * 8192 / 12) / 127, 0.05);
}

TEST_F(Matrix, ClampedElementsAreCounted) {
  const Int8Quantize op = quantize_of(vq::Real::f32, 3, 4, Scales::given);
  ScalarData data;
  data.dtype = op.dtype;
  data.tokens = 3;
  data.channels = 4;
  data.scales = {1, 1, 2, 0.5f};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{127.25f, 128, 255,      63.5f, -127.5f, -200,
                                  -300,    nan, infinity, 0,     0,       -64};
  data.elements.resize(values.size() * 4);
  for (std::size_t at = 0; at < values.size(); ++at) {
    put_real(op.dtype, data.elements, at, values[at]);
  }
  EXPECT_EQ(clamped_elements(data, run(op, kForms[3], data)), 4);  // 128, -200, -300, -64
}

// With no tokens, scales are those of channels without finite elements; no codes are written.
TEST_F(Matrix, NoTokens) {
  const Int8Quantize op = quantize_of(vq::Real::f16, 40, 24, Scales::computed);
  ScalarData data;
  data.dtype = op.dtype;
  data.channels = 24;
  data.computes_scales = true;
  for (ScalarForms plan : kForms) {
    for (const int splits : {1, 3}) {
      plan.splits = splits;
      const ScalarResult output = run(op, plan, data);
      EXPECT_EQ(output.scales, std::vector<float>(24, 1.0f));
      EXPECT_TRUE(output.codes.empty());
    }
  }
}

TEST_F(Matrix, AWrongBitIsFound) {
  const Int8Quantize op = quantize_of(vq::Real::f16, 9, 12, Scales::computed);
  const ScalarData data = make_scalar_data(op, {.seed = 5});
  const ScalarResult reference = reference_scalar(data);
  EXPECT_TRUE(judge_scalar(data, reference, reference).ok);
  ScalarResult code = reference;
  code.codes[40] ^= 1;
  EXPECT_EQ(judge_scalar(data, reference, code).wrong, 1);
  EXPECT_NE(judge_scalar(data, reference, code).why.find("token 3, channel 4"), std::string::npos);
  ScalarResult scale = reference;
  scale.scales[11] = std::nextafter(scale.scales[11], 1.0f);
  EXPECT_FALSE(judge_scalar(data, reference, scale).ok);
}

}  // namespace
}  // namespace vqgen::test

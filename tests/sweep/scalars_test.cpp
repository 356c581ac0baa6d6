// Laws of attention on scalar codes by mma: hard softmaxes, small values beside raw ones, NaN and
// infinity. The sweep covers formats, layouts and pages.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum class By { channel, token, group };

// Keys and values by channel, with 4-bit values; by token, with float keys; with zeros, keys by
// groups of tokens and values by token and groups of channels.
AttentionDecode numbers(By by) {
  AttentionDecode op;
  op.shape = {.batch = 2,
              .query_heads = 10,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 300,
              .recent_tokens = by == By::group ? 40 : 30,
              .sinks = 3};
  op.keys = {.vector_size = 2, .index_bits = 16, .scope = Scope::channel_group};
  op.keys.decoder = Decoder::scalar;
  op.values = op.keys;
  op.values.vector_size = 4;
  if (by == By::token) {
    op.keys.decoder = Decoder::e4m3;
    op.keys.scope = Scope::tensor;
    op.keys.token_scales = true;
    op.values = op.keys;
    op.values.decoder = Decoder::scalar;
  } else if (by == By::group) {
    op.keys = {.vector_size = 4, .index_bits = 16};
    op.keys.decoder = Decoder::affine;
    op.values = op.keys;
    op.keys.group_tokens = 32;
    op.values.token_scales = true;
    op.values.group_channels = 16;
  }
  return op;
}

class Scalars : public SweepTest<testing::TestWithParam<By>> {
 protected:
  static AttentionOutput run(const AttentionData& data, const AttentionDecode& op, int splits = 1) {
    auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
    plan.threads = 64;
    plan.splits = splits;
    return Kernel(*sweep_backend(0), op, plan, sweep_gpu()).run(data);
  }
  static void expect_right(const AttentionData& data, const AttentionDecode& op) {
    const AttentionResult reference = reference_of(op, data);
    for (const int splits : {1, 3}) {
      const AttentionOutput output = run(data, op, splits);
      const Comparison of_out = compare(reference.out, output.out, op.dtype);
      EXPECT_TRUE(of_out.ok) << splits << ' ' << of_out.rel_err << ' ' << of_out.max_local_err;
      EXPECT_TRUE(compare_lse(reference.lse, output.lse, op.dtype).ok) << splits;
    }
  }
};

std::uint16_t times(DType dtype, std::uint16_t element, float factor) {
  return element_from_float(dtype, element_to_float(dtype, element) * factor);
}

// Scales and zeros of affine codes.
void multiply_scales(QuantizedTensor& tensor, float factor) {
  const std::int64_t codes = tensor.row_words - tensor.format.scale_words(tensor.columns);
  for (std::int64_t i = 0; i < std::ssize(tensor.codes); ++i) {
    if (i % tensor.row_words < codes) continue;
    std::uint32_t& word = tensor.codes[static_cast<std::size_t>(i)];
    const auto half = [&](int shift) {
      const auto element = static_cast<std::uint16_t>(word >> shift);
      return std::uint32_t{times(tensor.dtype, element, factor)} << shift;
    };
    word = half(16) | half(0);
  }
}

// From equal weights for all tokens to one token alone.
TEST_P(Scalars, FlatAndPeakedScoresAreRight) {
  for (const float factor : {0.0f, 1.0f, 8.0f, 100.0f}) {
    SCOPED_TRACE(factor);
    const AttentionDecode op = numbers(GetParam());
    AttentionData data = make_attention_data(op, {.seed = 41});
    for (auto& element : data.queries) element = times(op.dtype, element, factor);
    expect_right(data, op);
  }
}

// Values of all sizes, with raw tokens as small or large as they are: 16-bit probabilities are
// scaled to what is summed.
TEST_P(Scalars, SmallAndLargeValuesAreRight) {
  for (const float factor : {1e-3f, 100.0f}) {
    SCOPED_TRACE(factor);
    AttentionDecode op = numbers(GetParam());
    op.dtype = DType::bf16;  // which has hardly any subnormals
    AttentionData data = make_attention_data(op, {.seed = 42});
    for (auto& element : data.raw_values) element = times(op.dtype, element, factor);
    if (op.values.has_zeros()) {
      multiply_scales(data.values, factor);
    } else if (op.values.token_scales) {
      const auto row = static_cast<std::size_t>(data.values.row_words);
      for (std::size_t last = row - 1; last < data.values.codes.size(); last += row) {
        std::uint32_t& word = data.values.codes[last];
        word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) * factor);
      }
    } else {
      for (auto& scale : data.values.codebooks) scale = times(op.dtype, scale, factor);
    }
    expect_right(data, op);
  }
}

class TokenScalars : public Scalars {};
class GroupScalars : public Scalars {};

// Tokens whose values are 2^20 times the others', which vanish beside them.
TEST_F(TokenScalars, LargeTokensAreRight) {
  AttentionDecode op = numbers(By::token);
  op.dtype = DType::bf16;
  AttentionData data = make_attention_data(op, {.seed = 43});
  const auto row = static_cast<std::size_t>(data.values.row_words);
  for (std::size_t token = 7; token < data.values.codes.size() / row; token += 100) {
    std::uint32_t& word = data.values.codes[token * row + row - 1];
    word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) * 1048576.0f);
  }
  expect_right(data, op);
}

// NaN or infinity in a head's query makes its output NaN and changes no other head's.
TEST_P(Scalars, AQueryThatIsNoNumberHarmsNoOther) {
  const AttentionDecode op = numbers(GetParam());
  AttentionData data = make_attention_data(op, {.seed = 46});
  const AttentionOutput right = run(data, op, 2);
  data.queries[5] = 0x7e00;           // head 0
  data.queries[3 * 64 + 2] = 0x7c00;  // head 3
  const AttentionOutput output = run(data, op, 2);
  for (std::size_t i = 0; i < output.out.size(); ++i) {
    if (i / 64 == 0 || i / 64 == 3) {
      EXPECT_TRUE(std::isnan(element_to_float(op.dtype, output.out[i]))) << i;
    } else {
      EXPECT_EQ(output.out[i], right.out[i]) << i;
    }
  }
}

TEST_P(Scalars, CodesThatNoQueryNeedsAreNotRead) {
  const AttentionDecode op = numbers(GetParam());
  AttentionData data = make_attention_data(op, {.seed = 44, .lengths = LengthPattern::ragged});
  const AttentionOutput before = run(data, op, 2);
  change_unread_codes(data,
                      [](std::uint32_t& word) { word = 0x7fffffffu; });  // a scale that is NaN
  expect_same_bits(before, run(data, op, 2));
}

// Group scales from the smallest to those of the largest elements: the scaled query stays within 16
// bits.
TEST_F(GroupScalars, SmallAndLargeKeysAreRight) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const float factor : {0.02f, 1.0f, 500.0f}) {
      SCOPED_TRACE(testing::Message() << enum_name(dtype) << ' ' << factor);
      AttentionDecode op = numbers(By::group);
      op.dtype = dtype;
      AttentionData data = make_attention_data(op, {.seed = 45});
      multiply_scales(data.keys, factor);
      for (auto& element : data.raw_keys) element = times(dtype, element, factor);
      for (auto& element : data.queries) element = times(dtype, element, 1 / factor);
      expect_right(data, op);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Scalars, testing::Values(By::channel, By::token, By::group),
                         [](const auto& each) {
                           return std::string(each.param == By::channel ? "Channels"
                                              : each.param == By::token ? "Tokens"
                                                                        : "Groups");
                         });

}  // namespace
}  // namespace vqgen::test

// Scales and minima of groups of inputs: scales of 1 and minima of 0 change no bit, those of a
// neighbour are found, and other dataflows refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "core/profiles.h"
#include "quantizer/encode.h"
#include "quantizer/pack.h"
#include "runtime/ops/linear/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct GroupWords {
  int inputs;
  int bits;
  bool minima = false;
};

void PrintTo(const GroupWords& groups, std::ostream* to) {
  *to << groups.inputs << ' ' << groups.bits << ' ' << groups.minima;
}

// Entries are integers with signs; with minima they are elements.
Linear grouped_product(int rows, const GroupWords& groups) {
  Linear op;
  op.shape = {.rows = rows, .out_features = 100, .in_features = 2048};
  op.weights = {.vector_size = 4, .index_bits = groups.minima ? 8 : 12};
  if (!groups.minima) {
    op.weights.decoder = Decoder::signs;
    with_integers(op.weights, true);
  }
  op.weights.group_inputs = groups.inputs;
  op.weights.group_scale_bits = groups.bits;
  op.weights.group_minima = groups.minima;
  return op;
}

std::vector<Plan> plans_of(const Problem& problem) {
  std::vector<Plan> plans;
  for (const Plan& like : {Plan(LinearSimt{}), Plan(LinearMma{}), Plan(LinearWgmma{}),
                           Plan(LinearWgmmaLargeM{}), Plan(LinearInt8Mma{})}) {
    Plan plan = rules_plan(like, problem, sweep_gpu());
    // A warp that goes through all columns loads the words that lanes share more than once.
    if (auto* const mma = std::get_if<LinearMma>(&plan)) {
      mma->splits = mma->warps_along_columns = 1;
    }
    if (check(plan, problem, sweep_gpu()).ok) plans.push_back(plan);
  }
  return plans;
}

class GroupScales : public SweepTest<testing::TestWithParam<GroupWords>> {
 protected:
  Linear op(int rows) const { return grouped_product(rows, GetParam()); }
  // The third of this format, so that each run has all dataflows.
  static std::uint64_t third(int rows) {
    return third_after(
        static_cast<std::uint64_t>(GetParam().inputs / 16 + GetParam().bits + rows / 17));
  }
};

// The words of scales of 1 behind the codes of a row, and of minima of 0.
std::vector<std::uint32_t> words_of_ones(const vq::GroupScales& groups, std::int64_t columns) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(groups.words(columns)),
                                   groups.minima ? 0x3c00u : 0x3c003c00u);
  const std::vector<std::uint32_t> numbers(static_cast<std::size_t>(columns / groups.inputs),
                                           groups.minima ? 1 : 0);
  if (groups.bits > 0) pack_row(numbers, groups.group_bits(), words);
  return words;
}

// With one row mma scales sums by lane, in another order; so does int8_mma, whose plan fits no
// format without groups.
TEST_P(GroupScales, OfOneChangeNoBit) {
  for (const int rows : {2, 17}) {
    const Linear with = op(rows);
    Linear without = with;
    without.weights.group_inputs = without.weights.group_scale_bits = 0;
    without.weights.group_minima = false;
    LinearData data = make_linear_data(without, {.seed = 3});
    // Stage scales of 1 as well: whether they multiply entries or sums is then the same.
    for (float& scale : data.weights.stage_scales) scale = 1.0f;
    LinearData of_ones = data;
    QuantizedTensor& weights = of_ones.weights;
    weights.format = with.weights;
    weights.codes.clear();
    weights.row_words = with.weights.row_words(weights.columns);
    const std::vector<std::uint32_t> ones =
        words_of_ones(with.weights.group_scales(), weights.columns);
    for (std::int64_t row = 0; row < weights.rows; ++row) {
      const auto from = data.weights.codes.begin() + row * data.weights.row_words;
      weights.codes.insert(weights.codes.end(), from, from + data.weights.row_words);
      weights.codes.insert(weights.codes.end(), ones.begin(), ones.end());
    }
    const std::vector<Plan> plans = plans_of(as_problem(with));
    EXPECT_GE(plans.size(), 2u);
    for (const Plan& plan : a_third(plans, third(rows))) {
      Plan plain = plan;
      if (!check(plain, as_problem(without), sweep_gpu()).ok) continue;
      if (auto* const large = std::get_if<LinearWgmmaLargeM>(&plain)) large->byte_sums = 0;
      EXPECT_EQ(Kernel(*sweep_backend(), as_problem(with), plan, sweep_gpu()).run(of_ones),
                Kernel(*sweep_backend(), as_problem(without), plain, sweep_gpu()).run(data))
          << kernel_name(plan);
    }
  }
}

// Faults of how simt reads scales, which it does one by one.
std::vector<Fault> faults_of_single(bool packed, bool minima) {
  if (packed) {
    return {{"i64{input / kGroups.inputs * kBits}", "i64{(input / kGroups.inputs ^ 1) * kBits}"},
            {"input / kBlockInputs)", "(input / kBlockInputs ^ 1))"},
            minima ? Fault{"fused(factor.scale, number, -factor.minimum)", "factor.scale * number"}
                   : Fault{"2 * number + 1", "2 * number + 2"}};
  }
  return {{"half_of(word, input / kGroups.inputs)", "half_of(word, input / kGroups.inputs ^ 1)"},
          {"output < last ? output : last", "i64{0}"},
          minima ? Fault{"-factor.minimum)", "factor.minimum)"} : Fault{">> number % 2 * 16", ""}};
}

// Faults of the numbers that a group has beside a minimum.
std::vector<Fault> faults_of_minima(bool packed) {
  if (!packed) return {{"half(number >> 16)", "half(number)"}};
  return {{"half(of_block >> 16)", "half(of_block)"},
          {"static_cast<float>(number >> kBits)", "static_cast<float>(number)"},
          {"number & ((1u << kBits) - 1u)", "number"}};
}

// Faults of dataflows that load the scales of a run with its codes; with one row, of mma by lane.
std::vector<Fault> faults_of_runs(const GroupWords& groups, bool mma, bool by_lane) {
  const auto [inputs, bits, minima] = groups;
  std::vector<Fault> faults = {{"word(kCodes + number)", "word(kCodes + (number ^ 1))"}};
  // Lanes may share larger groups; and words, which may last for all columns.
  const bool large = inputs > 32;
  const bool shared = bits == 4 || inputs == 256;
  if (!large) faults.push_back({"lane() % kStreams * Scales::kColumns", "0"});
  if (shared) {
    faults.push_back({"lane() / 4 * 4 + (Parts::word_of_part(first) + i) % 4", "lane()"});
  }
  if (!shared || !large) {
    faults.push_back(
        {"load(lane_column(column), [from]", "load(lane_column(column ^ 1024), [from]"});
  }
  if (shared && !large && mma) {
    faults.push_back({"kLasting + 1) * kLasting", "kLasting / 2 + 1) * kLasting"});
  }
  if (bits > 0) {
    faults.push_back({"word(kCodes + kPacked + number)", "word(kCodes + kPacked + (number ^ 1))"});
    if (!minima) faults.push_back({"2 * number + 1", "2 * number + 2"});
  }
  if (minima) {
    faults.push_back({"pack2<kElement>(-factor.minimum, -factor.minimum)",
                      "pack2<kElement>(-factor.minimum, factor.minimum)"});
    for (const Fault& fault : faults_of_minima(bits > 0)) faults.push_back(fault);
  }
  if (by_lane) {
    faults.push_back({"in_tile / 8 == in_tile % 4 ? 0 : 1", "0"});
    faults.push_back({"sum + shuffle_xor(sum, 2)", "sum"});
  }
  return faults;
}

// Faults of int8_mma: of its columns of x, its masks of signs, and its sums.
std::vector<Fault> faults_of_bytes(const GroupWords& groups) {
  std::vector<Fault> faults = {
      {"word(kCodes + number)", "word(kCodes + (number ^ 1))"},
      {"lane_group() / 2 == place_in_group()", "lane_group() / 2 >= place_in_group()"},
      {"mask * kOneOf255", "0u"},
      {"Decode::signs_of(code)); }", "Decode::signs_of(code) ^ 1u); }"},
      {", part) - raised", ", part)"},
      {"* 256u +", "* 255u +"},
      {"sum += shuffle_xor(sum, 2)", "sum += 0"}};
  if (groups.bits > 0) faults.push_back({"2 * number + 1", "2 * number + 2"});
  return faults;
}

TEST_P(GroupScales, AFaultIsFound) {
  const bool packed = GetParam().bits > 0, minima = GetParam().minima;
  for (const int rows : {1, 2, 17}) {
    const Linear problem = op(rows);
    const LinearData data = make_linear_data(problem, {.seed = 4});
    const std::vector<double> reference = reference_linear(data);
    for (const Plan& plan : a_third(plans_of(as_problem(problem)), third(rows))) {
      SCOPED_TRACE(kernel_name(plan));
      EXPECT_TRUE(is_right(
          reference, Kernel(*sweep_backend(), as_problem(problem), plan, sweep_gpu()).run(data),
          problem.dtype));
      const bool single = std::holds_alternative<LinearSimt>(plan);
      const bool mma = std::holds_alternative<LinearMma>(plan);
      const std::vector<Fault> faults =
          single ? faults_of_single(packed, minima)
          : std::holds_alternative<LinearInt8Mma>(plan)
              ? faults_of_bytes(GetParam())
              : faults_of_runs(GetParam(), mma, mma && rows == 1 && !minima);
      expect_faults_found(as_problem(problem), plan, faults, [&](Kernel& faulty) {
        return is_right(reference, faulty.run(data), problem.dtype);
      });
    }
  }
}

// The quantizer's decoder and the reference implement one definition independently.
TEST_P(GroupScales, TheQuantizerDecodesAsTheReference) {
  const QuantizedTensor weights = make_linear_data(op(2), {.seed = 2}).weights;
  const RowDecoder reference(weights);
  const FloatTensor decoded = decode(weights);
  std::vector<double> row(static_cast<std::size_t>(weights.columns));
  for (std::int64_t o = 0; o < weights.rows; ++o) {
    reference.decode(0, 0, o, row);
    // A minimum cancels digits of what it is subtracted from.
    const double largest = GetParam().minima ? *std::ranges::max_element(row) : 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto value = static_cast<double>(decoded.row(o)[i]);
      ASSERT_NEAR(value, row[i], 1e-6 * (std::abs(value) + largest)) << o << ' ' << i;
    }
  }
}

TEST_P(GroupScales, OtherDataflowsRefuse) {
  Linear problem = op(2);
  problem.weights.decoder = Decoder::table;
  problem.weights.index_bits = 8;
  problem.weights.num_codebooks = 2;
  for (const Plan& like : {Plan(LinearLut{}), Plan(LinearSlicedCodebook{}), Plan(LinearInt8Mma{}),
                           Plan(LinearInt8Wgmma{})}) {
    const Verdict verdict = check(like, as_problem(problem), find_gpu("h200"));
    EXPECT_FALSE(verdict.ok);
    EXPECT_NE(verdict.reason.find("takes no scales of groups of inputs"), std::string::npos)
        << verdict.reason;
  }
}

TEST_P(GroupScales, Int8MmaRefusesMoreRows) {
  const Verdict verdict = check(LinearInt8Mma{}, as_problem(op(3)), find_gpu("h200"));
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.reason.find("with 2 rows of x at most, of 3"), std::string::npos)
      << verdict.reason;
}

INSTANTIATE_TEST_SUITE_P(Of, GroupScales,
                         testing::Values(GroupWords{16, 0}, GroupWords{256, 0}, GroupWords{16, 4},
                                         GroupWords{32, 4}, GroupWords{32, 3}, GroupWords{128, 3},
                                         GroupWords{16, 4, true}, GroupWords{256, 0, true},
                                         GroupWords{32, 0, true}, GroupWords{64, 3, true}),
                         [](const auto& each) {
                           return "g" + std::to_string(each.param.inputs) + "s" +
                                  std::to_string(each.param.bits) + (each.param.minima ? "m" : "");
                         });

}  // namespace
}  // namespace vqgen::test

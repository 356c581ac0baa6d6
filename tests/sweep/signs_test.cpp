// Codes with signs: all plus is the plain table, each dataflow turns each sign, and a sign that is
// turned wrong is found.
#include <gtest/gtest.h>

#include "quantizer/encode.h"
#include "runtime/ops/linear/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// The same row words as a table whose codes have zeros where signs are.
Linear signed_product(int rows, int vector_size, bool integers, int number_bits) {
  Linear op;
  op.shape = {.rows = rows, .out_features = 100, .in_features = 2080};
  op.weights = {.vector_size = vector_size, .index_bits = number_bits + vector_size};
  op.weights.decoder = Decoder::signs;
  if (integers) with_integers(op.weights, true);
  return op;
}

std::vector<Plan> plans_of(const Linear& op) {
  const Problem problem = as_problem(op);
  std::vector<Plan> plans;
  for (const Plan& like :
       {Plan(LinearSimt{}), Plan(LinearMma{}), Plan(LinearWgmma{}), Plan(LinearWgmmaLargeM{}),
        Plan(LinearInt8Mma{}), Plan(LinearInt8Wgmma{})}) {
    const Plan plan = rules_plan(like, problem, sweep_gpu());
    if (check(plan, problem, sweep_gpu()).ok) plans.push_back(plan);
  }
  return plans;
}

class Signs : public SweepTest<testing::TestWithParam<std::tuple<int, bool, int>>> {
 protected:
  // One that a test runs on, of 2 rows or of 17.
  Linear op(int rows) const {
    const auto [vector_size, integers, number_bits] = GetParam();
    return signed_product(rows, vector_size, integers, number_bits);
  }
  // The third of this format, so that each run has all dataflows.
  static std::uint64_t third(int rows) {
    return third_after(static_cast<std::uint64_t>(std::get<0>(GetParam()) / 2 + rows / 17) +
                       (std::get<1>(GetParam()) ? 1 : 0) +
                       static_cast<std::uint64_t>(std::get<2>(GetParam())));
  }
};

TEST_P(Signs, AllPlusIsThePlainTable) {
  if (op(2).weights.index_bits > kMostNumberBits) GTEST_SKIP() << "no table has such long codes";
  for (const int rows : {2, 17}) {
    const Linear with = op(rows);
    Linear plain = with;
    plain.weights.decoder = Decoder::table;
    LinearData data = make_linear_data(with, {.seed = 3});
    LinearData of_plain = data;
    // The first entries of the plain table are those of the codebook; others are never read.
    of_plain.weights.format = plain.weights;
    of_plain.weights.codebooks.resize(static_cast<std::size_t>(plain.weights.entries()) *
                                      static_cast<std::size_t>(plain.weights.vector_size));
    const int bits = with.weights.index_bits;
    const std::uint32_t mask = static_cast<std::uint32_t>(with.weights.entries() - 1);
    for (std::int64_t row = 0; row < data.weights.rows; ++row) {
      std::uint32_t* const words = data.weights.codes.data() + row * data.weights.row_words;
      const std::int64_t codes = data.weights.columns / with.weights.vector_size;
      for (std::int64_t bit = 0; bit < codes * bits; ++bit) {
        if ((mask >> bit % bits & 1u) == 0) words[bit / 32] &= ~(1u << bit % 32);
      }
    }
    of_plain.weights.codes = data.weights.codes;
    std::vector<std::pair<Plan, Plan>> compared;
    for (const Plan& plan : plans_of(with)) {
      // The plain table is larger, so its entries are where this plan may have none.
      Plan of_table = plan;
      std::visit(
          [&](auto& own) {
            if constexpr (requires { own.codebook = Placement{}; }) {
              own.codebook = all_shared(plain.weights.entries());
            }
          },
          of_table);
      if (check(of_table, as_problem(plain), sweep_gpu()).ok) compared.emplace_back(plan, of_table);
    }
    EXPECT_GE(compared.size(), 2u);
    for (const auto& [plan, of_table] : a_third(compared, third(rows))) {
      EXPECT_EQ(Kernel(*sweep_backend(), as_problem(with), plan, sweep_gpu()).run(data),
                Kernel(*sweep_backend(), as_problem(plain), of_table, sweep_gpu()).run(of_plain))
          << kernel_name(plan);
    }
  }
}

TEST_P(Signs, AFaultIsFound) {
  for (const int rows : {2, 17}) {
    const Linear problem = op(rows);
    const LinearData data = make_linear_data(problem, {.seed = 4});
    const std::vector<double> reference = reference_linear(data);
    for (const Plan& plan : a_third(plans_of(problem), third(rows))) {
      SCOPED_TRACE(kernel_name(plan));
      const bool bytes = std::holds_alternative<LinearInt8Mma>(plan) ||
                         std::holds_alternative<LinearInt8Wgmma>(plan) ||
                         (std::holds_alternative<LinearWgmmaLargeM>(plan) &&
                          std::get<LinearWgmmaLargeM>(plan).byte_sums != 0);
      const std::vector<Fault> faults =
          bytes ? std::vector<Fault>{{"return code >> kNumberBits;",
                                      "return code >> kNumberBits << 1;"},
                                     {"looked.signs >> 4 * i", "looked.signs >> (4 * i + 1)"},
                                     {"+ ones) ^ ones << 7", ") ^ ones << 7"}}
                : std::vector<Fault>{
                      {"return code >> kNumberBits;", "return code >> kNumberBits << 1;"},
                      {"signs * 0x8001u", "signs * 0x4001u"},
                      {"& ((1u << kNumberBits) - 1u)", "& ((1u << kNumberBits) - 2u)"}};
      EXPECT_TRUE(is_right(
          reference, Kernel(*sweep_backend(), as_problem(problem), plan, sweep_gpu()).run(data),
          problem.dtype));
      expect_faults_found(as_problem(problem), plan, faults, [&](Kernel& faulty) {
        return is_right(reference, faulty.run(data), problem.dtype);
      });
    }
  }
}

// The quantizer's decoder and the reference implement one definition independently.
TEST_P(Signs, TheQuantizerDecodesAsTheReference) {
  const QuantizedTensor weights = make_linear_data(op(2), {.seed = 2}).weights;
  const RowDecoder reference(weights);
  const FloatTensor decoded = decode(weights);
  std::vector<double> row(static_cast<std::size_t>(weights.columns));
  bool negative = false;
  for (std::int64_t o = 0; o < weights.rows; ++o) {
    reference.decode(0, 0, o, row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto value = static_cast<double>(decoded.row(o)[i]);
      ASSERT_NEAR(value, row[i], 1e-6 * std::abs(value)) << o << ' ' << i;
      negative |= value < 0;
    }
  }
  EXPECT_TRUE(negative);
}

INSTANTIATE_TEST_SUITE_P(Of, Signs,
                         testing::Values(std::tuple{2, false, 5}, std::tuple{4, false, 5},
                                         std::tuple{8, false, 5}, std::tuple{4, true, 5},
                                         std::tuple{8, true, 5}, std::tuple{8, false, 9},
                                         std::tuple{8, true, 10}),
                         [](const auto& each) {
                           return "d" + std::to_string(std::get<0>(each.param)) +
                                  (std::get<1>(each.param) ? "i8" : "") + "n" +
                                  std::to_string(std::get<2>(each.param));
                         });

}  // namespace
}  // namespace vqgen::test

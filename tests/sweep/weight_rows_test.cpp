// weight_dequantize beside the sweep: a linear op of the identity is the dense matrix, parts of the
// rows are the rows of the whole, plans change no bit, and faults are found.
#include <gtest/gtest.h>

#include "core/profiles.h"
#include "quantizer/encode.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class WeightRows : public SweepTest<testing::TestWithParam<const char*>> {
 protected:
  static WeightDequantize op(std::int64_t rows = 72) {
    WeightDequantize op;
    op.dtype = DType::bf16;
    op.shape = {.rows = rows, .out_features = 72, .in_features = 256};
    op.weights = find_format(GetParam(), "test");
    return op;
  }
  static Kernel kernel(const WeightDequantize& op, const Plan& plan) {
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
  static Plan rules(const WeightDequantize& op) {
    return rules_plan(WeightsSimt{}, op, sweep_gpu());
  }
  // All rows of the matrix.
  static WeightRowsData whole(const WeightDequantize& op) {
    WeightRowsData data = make_weight_rows_data(op, {.seed = 7});
    data.first_row = 0;
    data.rows = op.shape.out_features;
    return data;
  }
};

// An output of a row of the identity is one product, which is the weight rounded once.
TEST_P(WeightRows, AreWhatALinearOpMakesOfTheIdentity) {
  const WeightDequantize op = this->op();
  const WeightRowsData data = whole(op);
  Gemm product;
  product.dtype = op.dtype;
  product.shape = {
      .rows = 256, .out_features = op.shape.out_features, .in_features = op.shape.in_features};
  product.weights = op.weights;
  LinearData of_identity{product.dtype, data.weights, 256, {}, {}, {}};
  of_identity.x.assign(256 * 256, 0);
  for (std::size_t i = 0; i < 256; ++i)
    of_identity.x[i * 256 + i] = element_from_float(op.dtype, 1);
  const std::vector<std::uint16_t> dense = kernel(op, rules(op)).run(data);
  const std::vector<double> reference = reference_linear(of_identity);
  std::vector<std::uint16_t> transposed(dense.size());
  for (std::size_t o = 0; o < 72; ++o) {
    for (std::size_t i = 0; i < 256; ++i) transposed[i * 72 + o] = dense[o * 256 + i];
  }
  EXPECT_TRUE(is_right(reference, transposed, op.dtype));
  const Plan plan = rules_plan(LinearMma{}, Problem(product), sweep_gpu());
  const std::vector<std::uint16_t> y =
      Kernel(*sweep_backend(), product, plan, sweep_gpu()).run(of_identity);
  EXPECT_TRUE(is_right(reference, y, op.dtype));
}

TEST_P(WeightRows, OfAPartAreThoseOfTheWhole) {
  const WeightDequantize all = op();
  WeightRowsData data = whole(all);
  const std::vector<std::uint16_t> dense = kernel(all, rules(all)).run(data);
  const WeightDequantize few = op(20);
  Kernel part = kernel(few, rules(few));
  for (const auto& [first, rows] : {std::pair{0, 20}, std::pair{13, 20}, std::pair{52, 20},
                                    std::pair{71, 1}, std::pair{31, 2}}) {
    data.first_row = first;
    data.rows = rows;
    const auto begin = dense.begin() + first * 256;
    EXPECT_EQ(part.run(data), std::vector<std::uint16_t>(begin, begin + rows * 256)) << first;
  }
}

TEST_P(WeightRows, AreTheQuantizers) {
  const WeightDequantize op = this->op();
  const WeightRowsData data = whole(op);
  const FloatTensor by_quantizer = reconstruct(data.weights);
  const std::vector<double> reference = reference_weight_rows(data);
  ASSERT_EQ(by_quantizer.data.size(), reference.size());
  for (std::size_t i = 0; i < reference.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(by_quantizer.data[i]), reference[i],
                1e-5 * (1 + std::abs(reference[i])))
        << i;
  }
}

TEST_P(WeightRows, NoPlanChangesABit) {
  const WeightDequantize op = this->op();
  const WeightRowsData data = whole(op);
  const std::vector<std::uint16_t> dense = kernel(op, rules(op)).run(data);
  for (const WeightsSimt& plan : {WeightsSimt{.threads = 32, .weight_rows = 1, .chunk_columns = 8},
                                  WeightsSimt{.threads = 96,
                                  .weight_rows = 8,
                                  .chunk_columns = 64,
                                  .codebook = all_shared(op.weights.entries())}}) {
    if (!check(plan, op, sweep_gpu()).ok) continue;
    EXPECT_EQ(kernel(op, plan).run(data), dense) << to_json(Plan(plan)).dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WeightRows,
                         testing::Values("aqlm-2x8i8", "aqlm-2x8", "aqlm-1x16", "iq2-xxs", "iq2-xs",
                                         "iq2-s", "iq1-m", "iq3-s", "q2-k"),
                         [](const auto& each) { return test_name(each.param); });

using WeightRowsOfSigns = SweepTest<>;

// A code of a byte, whose signs take half of it, is no number of a table's entry.
TEST_F(WeightRowsOfSigns, CodesOfAByteAreLookedUp) {
  WeightDequantize op;
  op.shape = {.rows = 13, .out_features = 13, .in_features = 64};
  op.weights = {.vector_size = 4, .index_bits = 8};
  op.weights.decoder = Decoder::signs;
  WeightRowsData data = make_weight_rows_data(op, {.seed = 11});
  data.first_row = 0;
  const Plan plan = rules_plan(WeightsSimt{}, op, sweep_gpu());
  EXPECT_TRUE(compare(reference_weight_rows(data),
                      Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data), op.dtype)
                  .ok);
}

using WeightRowsFaults = SweepTest<>;

// Each fault changes one place of the kernel's text.
TEST_F(WeightRowsFaults, TheJudgeFindsWhatWrongKernelsWrite) {
  WeightDequantize op;
  op.shape = {.rows = 30, .out_features = 120, .in_features = 264};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2, .scope = Scope::tile};
  op.weights.tile_rows = 24;
  op.weights.tile_columns = 88;
  op.weights.output_scales = true;
  with_integers(op.weights, true);
  op.weights.common_scale = true;
  WeightRowsData data = make_weight_rows_data(op, {.seed = 9});
  data.first_row = 85;
  const std::vector<double> reference = reference_weight_rows(data);
  const Plan plan = WeightsSimt{.threads = 32,
                                .weight_rows = 24,
                                .chunk_columns = 88,
                                .codebook = all_shared(op.weights.entries())};
  const Fault faults[] = {
      {"args.first_row / kRows + block_x()", "block_x()"},  // other rows
      {"octet.row - static_cast<int>(args_.first_row)",
       "(octet.row - static_cast<int>(args_.first_row)) / 2"},  // other rows of out
      {"row / Work::kUnitRows * Work::kUnitsPerRow + ", ""},    // another tile's codebooks
      {"book_.switch_to(unit_of(first_, first_column_))", "book_.switch_to(0)"},
      {"output_scales + octet.row", "output_scales"},
      {"scale *= book_.scale(unit(octet, s), 0);", ""},
      {"words_[0] >>= shift_;", ""},  // another octet's codes
      {"book_.held(unit, 0, stage, code(stage))", "book_.held(unit, 0, 0, code(stage))"},
      {"code(int sub_vector, int stage) const {\n    return",
       "code(int sub_vector, int) const {\n    const int stage = 0;\n    return"},
      {"-static_cast<u32>(kStages - 1)", "-static_cast<u32>(kStages)"},
      {"float_from_bits(bits) - 8388736.0f", "float_from_bits(bits) - 8388608.0f"},
      {"end_ = last * kOctets;", "end_ = (last - 1) * kOctets;"},
      {"next_ += kTogether * kThreads;", "next_ += (kTogether + 1) * kThreads;"},
      {"book_.finish(thread_index(), begun);\n    sync_block();",
       "book_.finish(thread_index(), begun);"},
  };
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return compare(reference, faulty.run(data), op.dtype).ok;
  });
}

}  // namespace
}  // namespace vqgen::test

// The fusions of the mma dataflow against each other. They multiply the same operands in another
// order of columns, so exact fp32 sums are equal to the bit and others within rounding. Entries of
// 8 have one order with registers and shared memory, so their bits are always equal.
#include <gtest/gtest.h>

#include <map>

#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr std::array kFusions{LinearFusion::permute, LinearFusion::registers, LinearFusion::shared};

class Fusions : public SweepTest<> {
 protected:
  // y by each fusion, checked against the reference.
  static std::vector<std::vector<std::uint16_t>> products(const Problem& problem, LinearMma plan,
                                                          const LinearData& data) {
    const Linear& op = *as_linear(problem);
    const std::vector<double> expected = reference_linear(data);
    std::vector<std::vector<std::uint16_t>> found;
    std::size_t order = 0;
    for (const LinearFusion fusion : kFusions) {
      plan.fusion = fusion;
      const Verdict verdict = check(plan, problem, sweep_gpu());
      EXPECT_TRUE(verdict.ok) << enum_name(fusion) << ": " << verdict.reason;
      if (!verdict.ok) return {};
      found.push_back(Kernel(*sweep_backend(order++), problem, plan, sweep_gpu()).run(data));
      EXPECT_TRUE(compare(expected, found.back(), op.dtype).ok) << enum_name(fusion);
    }
    return found;
  }
};

Gemm product_of(const VqFormat& format, int rows, DType dtype) {
  Gemm op;
  op.dtype = dtype;
  op.shape = {.rows = rows, .out_features = 45, .in_features = 520};
  op.weights = format;
  return op;
}

LinearMma plan_of(const Gemm& op, int fragment_rows) {
  auto plan = rules_plan<LinearMma>(op, sweep_gpu());
  EXPECT_TRUE(check(plan, op, sweep_gpu()).ok);
  plan.fragment_rows = fragment_rows;
  plan.rows_per_block = 8;
  plan.outputs_per_warp = 16;
  return plan;
}

VqFormat table(int vector_size, int index_bits, int num_codebooks) {
  return {.vector_size = vector_size, .index_bits = index_bits, .num_codebooks = num_codebooks};
}
VqFormat e8p(int num_codebooks) {
  VqFormat format = table(8, 16, num_codebooks);
  format.decoder = Decoder::e8p;
  return format;
}

// Makes entries and x small whole numbers: 520 products below 2^8 are exact in fp32.
void round_to_whole(LinearData& data, DType dtype) {
  std::size_t i = 0;
  if (data.weights.format.decoder == Decoder::table) {
    for (std::uint16_t& bits : data.weights.codebooks) {
      bits = element_from_float(dtype, static_cast<float>(static_cast<int>(i++ * 7 % 13) - 6));
    }
  }
  for (std::uint16_t& bits : data.x) {
    bits = element_from_float(dtype, static_cast<float>(static_cast<int>(i++ * 5 % 11) - 5));
  }
}

TEST_F(Fusions, ExactSumsAreEqualToTheBit) {
  // Codes that fill a word, that straddle words, and whose candidates are words apart.
  const std::vector<VqFormat> formats{table(2, 8, 1), table(2, 5, 2),  table(2, 12, 3),
                                      table(4, 8, 1), table(4, 11, 2), table(4, 16, 2),
                                      table(8, 8, 2), table(8, 13, 1), e8p(2)};
  int turn = 0;
  for (const VqFormat& format : a_third(formats)) {
    const int rows = ++turn % 2 == 0 ? 3 : 9;
    const auto dtype = static_cast<DType>(turn / 2 % 2);
    const Gemm op = product_of(format, rows, dtype);
    SCOPED_TRACE(testing::Message() << format.vector_size << ' ' << format.index_bits << " x"
                                    << format.num_codebooks << ", " << rows << " rows");
    LinearData data = make_linear_data(op, {.seed = 1});
    round_to_whole(data, dtype);
    for (const int fragment_rows : {4, 8}) {
      const auto found = products(op, plan_of(op, fragment_rows), data);
      ASSERT_EQ(found.size(), kFusions.size());
      EXPECT_EQ(found[1], found[0]) << "registers";
      EXPECT_EQ(found[2], found[0]) << "shared";
    }
  }
}

TEST_F(Fusions, EntriesOf8HaveTheSameBitsExchangedAnyWay) {
  for (const VqFormat& format : {table(8, 8, 2), e8p(1)}) {
    const Gemm op = product_of(format, 9, DType::f16);
    const LinearData data = make_linear_data(op, {.seed = 8});
    for (const int fragment_rows : {4, 8}) {
      const auto found = products(op, plan_of(op, fragment_rows), data);
      ASSERT_EQ(found.size(), kFusions.size());
      EXPECT_EQ(found[2], found[1]) << fragment_rows;
    }
  }
}

// Stage scales, tiles of codebooks and warps that share the columns, by every fusion.
TEST_F(Fusions, ScalesAndTilesAreRightWithAll) {
  for (const int vector_size : {2, 4, 8}) {
    VqFormat format = table(vector_size, 6, 2);
    format.scope = Scope::tile;
    format.tile_rows = 32;
    format.tile_columns = 64;
    format.stage_scales = format.output_scales = true;
    const Gemm op = product_of(format, 6, DType::f16);
    const LinearData data = make_linear_data(op, {.seed = 9});
    for (const int fragment_rows : {4, 8}) {
      LinearMma plan = plan_of(op, fragment_rows);
      plan.threads = 128;
      plan.warps_along_columns = 2;
      plan.code_words = 1;
      plan.chunk_columns = 256;
      plan.splits = 3;
      EXPECT_EQ(products(op, plan, data).size(), kFusions.size());
    }
  }
}

// A second run in another lane order gives equal bits.
TEST_F(Fusions, RunsRepeatTheirBits) {
  const Gemm op = product_of(table(4, 8, 2), 9, DType::f16);
  const LinearData data = make_linear_data(op, {.seed = 10});
  LinearMma plan = plan_of(op, 8);
  for (const LinearFusion fusion : kFusions) {
    plan.fusion = fusion;
    const auto y = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
    for (const std::size_t order : {1u, 2u}) {
      EXPECT_EQ(Kernel(*sweep_backend(order), op, plan, sweep_gpu()).run(data), y);
    }
  }
}

// Plans with another fusion are other kernels, by name and text.
TEST_F(Fusions, EachIsAKernelOfItsOwn) {
  const Gemm op = product_of(table(8, 8, 1), 9, DType::f16);
  LinearMma plan = plan_of(op, 8);
  std::map<std::string, LinearFusion> names;
  for (const LinearFusion fusion : kFusions) {
    plan.fusion = fusion;
    const Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    EXPECT_TRUE(names.emplace(kernel.source().entries.front().name, fusion).second);
  }
}

}  // namespace
}  // namespace vqgen::test

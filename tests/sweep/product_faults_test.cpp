// GEMM kernels with one changed place in their text, by dataflow: the reference or the race checker
// finds each.
#include <gtest/gtest.h>

#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct ProductFaults {
  const char* name;
  Linear op;
  Plan plan;
  std::vector<Fault> faults;
};

// Int8 entries in two stages; 100 outputs and 2080 columns, which fill no block.
Linear int8_product(int rows) {
  Linear op;
  op.shape = {.rows = rows, .out_features = 100, .in_features = 2080};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  with_integers(op.weights, true);
  op.weights.common_scale = true;
  return op;
}

// Two groups of columns with a scale each; all warps, the pre-pass, or two producer warps convert x
// to bytes.
ProductFaults of_bytes(const char* name, int prepack_x, int producer_warps) {
  const Linear op = int8_product(8);
  auto plan = rules_plan<LinearInt8Mma>(Gemm{op}, sweep_gpu());
  plan.chunk_columns = 1024;
  plan.splits = 2;
  plan.warps_along_columns = 1;
  plan.prepack_x = prepack_x;
  plan.producer_warps = producer_warps;
  plan.threads += 32 * producer_warps;
  return {name,
          op,
          plan,
          {{"words[i] ^= 0x80808080u;", "words[i] ^= 0u;"},
           {"fused(256.0f, high, low)", "256.0f * high"},
           {"fused(256.0f, high, low)", "fused(250.0f, high, low)"},
           {"12582912.0f + 128.0f", "12582912.0f"},
           {"x_.scale(group,", "x_.scale(0,"},
           {"stage == 0 ? word :", "stage == 1 ? word :"}}};
}

ProductFaults of_bytegroups(const char* name, int prepack_x, std::vector<Fault> of_own_x = {}) {
  LinearInt8Wgmma plan{.threads = 256, .chunk_columns = 256, .splits = 2};
  plan.prepack_x = prepack_x;
  plan.rows_per_block = 32;
  plan.code_words = 2;
  plan.codebook = all_shared(256);
  plan.combine = Combine::cluster;
  std::vector<Fault> faults{{"fused(256.0f, high, low)", "fused(250.0f, high, low)"},
                            {"words[i] ^= 0x80808080u;", "words[i] ^= 0u;"}};
  faults.insert(faults.end(), of_own_x.begin(), of_own_x.end());
  return {name, int8_product(21), plan, faults};
}

// One warpgroup with a ring whose buffers are reused, or four that share the columns.
ProductFaults of_rowgroups(const char* name, int along, int prepack_x, std::vector<Fault> faults) {
  const Linear op = int8_product(33);
  auto plan = rules_plan<LinearWgmmaLargeM>(Gemm{op}, sweep_gpu());
  plan.threads = along > 1 ? 512 : 128;
  plan.code_words = 1;
  plan.splits = along > 1 ? 3 : 1;
  plan.combine = Combine::kernel;
  plan.prepack_x = prepack_x;
  if (along > 1) {
    plan.groups_along_columns = along;
    plan.chunk_columns = along * 64;
    plan.codebook = all_shared(op.weights.entries());
  }
  return {name, op, plan, std::move(faults)};
}

// Experts with their own scales and codebooks, and a combine.
ProductFaults of_experts() {
  Linear op = small_product(6, 6, 1);
  op.shape.experts = 70;
  op.shape.total_rows = 20;
  op.weights.scope = Scope::channel_group;
  op.weights.group_channels = 128;
  op.weights.stage_scales = true;
  return {"experts by lanes",
          op,
          LinearSimt{.threads = 64, .chunk_columns = 128, .splits = 2, .rows_per_block = 4},
          {{"own.weights.codes += rows.expert", "own.weights.codes += 0"},
           {"own.weights.codebooks += rows.expert", "own.weights.codebooks += 0"},
           {"own.weights.scales += rows.expert", "own.weights.scales += 0"},
           {"own.output_scales += rows.expert", "own.output_scales += 0"},
           {"own.partials += i64{rows.first}", "own.partials += i64{0}"},
           {"own.x += i64{rows.first}", "own.x += i64{0}"},
           {"if (lane() >= step) before", "if (lane() > step) before"},
           {"static_cast<u32>(left) << kExpertBits", "0u"},
           {"left -= blocks[i]", "left -= 1"},
           {"offset(middle) <= row", "offset(middle) < row"}}};
}

// A gate, a multiplier and a residual, by blocks that hold both rows of a pair.
ProductFaults of_epilogue(const char* name, const Plan& plan, std::vector<Fault> faults) {
  Linear op = int8_product(6);
  op.shape.out_features = 128;
  op.shape.gate = Gate::silu;
  op.shape.multiplier = 0.22;
  op.shape.residual = true;
  op.weights.output_scales = true;
  faults.insert(faults.end(), {{"value = silu(value) *", "value = value *"},
                               {"value *= args.multiplier;", ";"},
                               {"whole(args, up, total(up))", "whole(args, output, total(up))"},
                               {"whole(args, up, total(up))", "whole(args, up, total(output))"},
                               {"load_global_coherent(args.residual + place)",
                                "load_global_coherent(args.residual + column)"}});
  return {name, op, plan, std::move(faults)};
}

// Blocks of gate rows and blocks of up rows, which the last of both merges.
ProductFaults of_pairs_of_blocks() {
  const LinearMma plan{.threads = 64, .chunk_columns = 1024, .combine = Combine::last_block};
  const Fault first_output{"first_output() / (2 * kRun) * kRun + first_output() % kRun",
                           "first_output() / 2"};
  const Fault first_row{"i64 output = first_row_of(kConfig, column)", "i64 output = column"};
  ProductFaults made =
      of_epilogue("gate rows and up rows by blocks of their own", plan, {first_output, first_row});
  made.op.shape.gate_rows = 64 / 2;
  return made;
}

std::vector<ProductFaults> product_faults() {
  return {
      of_bytes("int8_mma", 0, 0),
      of_bytes("bytes, x before", 1, 0),
      of_bytes("bytes, x by warps of its own", 0, 2),
      of_bytegroups("bytegroups, x before", 1),
      of_bytegroups("bytegroups, x by each block", 0,
                    {{"number / kRunOctets % 4", "number % 4"},
                     {"number / (4 * kRunOctets) * kRunOctets", "0"},
                     {"warp() + turn * kWarps", "warp()"},
                     {"Share::scale(row - block_y() * kRows)", "Share::scale(0)"},
                     {"store_shared(reinterpret_cast<u32*>(octet_bytes), high[k]);",
                      "store_shared(reinterpret_cast<u32*>(octet_bytes), high[0]);"}}),
      of_rowgroups("wgmma_large_m", 1, 1,
                   {{"words[i] ^= 0x80808080u;", "words[i] ^= 0u;"},
                    {"return sum * table_.scale();", "return sum;"},
                    {"words[2 * (e * kWords + i) + 1] = elements.y;",
                     "words[2 * (e * kWords + i) + 1] = elements.x;"},
                    {"from_ + i64{piece} * kBytes", "from_ + i64{piece / 2} * kBytes"},
                    {"number % kSteps * step_bytes(kConfig)", "0"},
                    {"word_of(octets[1], p)", "word_of(octets[0], p)"}}),
      of_rowgroups("rowgroups that share columns, x before", 4, 1,
                   {{"(of_run / steps * c.groups_along_columns + group) * steps",
                     "(of_run / steps * c.groups_along_columns + (group ^ 1)) * steps"},
                    {"operands_(group * kSteps * step_bytes(kConfig))", "operands_(0)"}}),
      of_rowgroups(
          "rowgroups that share columns, x by each block", 4, 0,
          {{"run += kConfig.groups_along_columns;", "run += 1;"},
           {"if (other == part) continue;", "continue;"},
           {"handed_over(part, other, tile, i % kPart)", "handed_over(part, other, tile, 0)"},
           {"place(step_of(number)) + row_of", "place(step_of(number) ^ 1) + row_of"}}),
      of_experts(),
      of_epilogue("an epilogue of simt", LinearSimt{.threads = 64, .chunk_columns = 160},
                  {{"BlockSums<LinearWork>::begin();", ";"},
                   {"} else {\n      sync_block();\n    }\n    for (int i = Work::split()",
                    "}\n    for (int i = Work::split()"}}),
      of_epilogue("an epilogue of a cluster",
                  LinearInt8Mma{.threads = 64,
                                .outputs_per_warp = 16,
                                .chunk_columns = 1024,
                                .splits = 2,
                                .combine = Combine::cluster,
                                .code_words = 1,
                                .codebook = all_shared(256)},
                  {{"load_peer(sums, peer)", "load_peer(sums, 0)"}}),
      of_pairs_of_blocks(),
  };
}

// The parameters: element type and number in the table.
class WrongProducts : public SweepTest<testing::TestWithParam<std::tuple<DType, std::size_t>>> {};

TEST_P(WrongProducts, AreFound) {
  ProductFaults made = product_faults()[std::get<1>(GetParam())];
  SCOPED_TRACE(made.name);
  made.op.dtype = std::get<0>(GetParam());
  const Problem problem = as_problem(made.op);
  const Verdict verdict = check(made.plan, problem, sweep_gpu());
  if (needs_warpgroups(made.plan) && !sweep_gpu().warpgroup_products) {
    GTEST_SKIP() << verdict.reason;
  }
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  const LinearData data = make_linear_data(made.op, {.seed = 5, .lengths = LengthPattern::ragged});
  const std::vector<double> reference = reference_linear(data);
  EXPECT_TRUE(is_right(reference,
                       Kernel(*sweep_backend(), problem, made.plan, sweep_gpu()).run(data),
                       made.op.dtype));
  expect_faults_found(problem, made.plan, made.faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), made.op.dtype);
  });
}

INSTANTIATE_TEST_SUITE_P(By, WrongProducts,
                         testing::Combine(testing::Values(DType::f16, DType::bf16),
                                          testing::Range(std::size_t{0}, product_faults().size())),
                         [](const auto& each) {
                           const std::string dtype(enum_name(std::get<0>(each.param)));
                           const auto number = std::get<1>(each.param);
                           return test_name(dtype + ' ' + product_faults()[number].name);
                         });

}  // namespace
}  // namespace vqgen::test

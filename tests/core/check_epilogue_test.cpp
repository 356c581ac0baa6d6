// Epilogues of products: what a config may say of gates, and which plans hold their pairs of rows.
#include "heuristics/kernels/slice.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

Linear gated(std::int64_t outputs, int gate_rows) {
  Linear op;
  op.shape = {.rows = 4, .out_features = outputs, .in_features = 1024};
  op.shape.gate = Gate::silu;
  op.shape.gate_rows = gate_rows;
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  return op;
}

TEST(CheckEpilogue, WhatAConfigSays) {
  const auto refused = [](const std::vector<Edit>& edits, const std::vector<std::string>& words) {
    const Json json = edited(gemv_json(), edits);
    expect_words(message_of([&] { read_config(json, "c.json"); }), words);
  };
  refused({{"/shape/gate", R"("gelu")"}}, {"c.json: /shape/gate", "'gelu' is none of", "silu"});
  refused({{"/shape/gate_rows", "8"}}, {"/shape/gate_rows", "goes with gate only"});
  refused({{"/shape/gate", R"("silu")"}, {"/shape/out_features", "511"}},
          {"/shape/out_features", "511", "even"});
  refused({{"/shape/gate", R"("silu")"}, {"/shape/gate_rows", "3"}},
          {"/shape/gate_rows", "3 does not divide the 256 gate rows", "use 1, 256"});
  refused({{"/shape/multiplier", "0"}}, {"/shape/multiplier", "1e-06 to 1000000"});
}

// A missing field is not written, so digests and tuned rows of plain products do not change.
TEST(CheckEpilogue, PlainProductsAreWrittenWithoutIt) {
  const Json plain = to_json(read_config(gemv_json(), "c.json").problem)["shape"];
  for (const char* name : {"gate", "gate_rows", "multiplier", "residual"}) {
    EXPECT_FALSE(plain.contains(name)) << name;
  }
  const Json json = edited(gemv_json(), {{"/shape/gate", R"("silu")"},
                                         {"/shape/gate_rows", "8"},
                                         {"/shape/multiplier", "0.5"},
                                         {"/shape/residual", "true"}});
  EXPECT_EQ(to_json(read_config(json, "c.json").problem)["shape"], json["shape"]);
}

// Blocks of 32 outputs: pairs of rows within a block need no partial sums.
TEST(CheckEpilogue, PairsWithinABlockTakeOneLaunch) {
  const LinearMma plan{.threads = 64, .chunk_columns = 512};
  for (const auto& [gate_rows, within] :
       {std::pair{1, true}, {16, true}, {32, false}, {20, false}, {640, false}}) {
    const vq::CallShape shape = call_shape(plan, gated(1280, gate_rows));
    EXPECT_EQ(shape.count, within ? 1 : 2) << gate_rows;
    EXPECT_EQ(shape.workspace_bytes > 0, !within) << gate_rows;
    if (!within) {
      EXPECT_EQ(shape.launches[1].x, 4 * 640 / 256) << gate_rows;
    }
  }
  Linear plain = gated(1280, 1);
  plain.shape.gate = Gate::none;
  EXPECT_EQ(call_shape(plan, plain).count, 1);
  plain.shape.residual = true;
  EXPECT_EQ(call_shape(plan, plain).count, 1);
}

TEST(CheckEpilogue, BlocksThatHaveOneRowOfAPairMeet) {
  LinearMma plan{.threads = 64, .chunk_columns = 512};
  const auto judge = [&](int gate_rows) {
    return check(plan, Gemv{gated(1280, gate_rows)}, find_gpu("h200"));
  };
  expect_ok(judge(20));
  plan.combine = Combine::last_block;
  expect_ok(judge(640));
  expect_refused(judge(20), {"runs of 20 (gate_rows)", "32 outputs of a block", "use kernel"});
  expect_refused(judge(1), {"nothing to merge with splits 1"});
  plan.splits = 2;
  expect_ok(judge(1));
  LinearWgmma groups{
      .threads = 128, .chunk_columns = 512, .splits = 2, .combine = Combine::cluster};
  groups.rows_per_block = 8;
  const auto of_groups = [&](int gate_rows) {
    return check(groups, Gemv{gated(1280, gate_rows)}, find_gpu("h200"));
  };
  expect_ok(of_groups(1));
  expect_refused(of_groups(640), {"combine cluster", "runs of 640 (gate_rows)", "last_block"});
}

}  // namespace
}  // namespace vqgen

// vqgen_weight_dequantize_launch(): launches that must not happen are refused, each with its
// status; arguments arrive where they belong.
#include <vq/args/weight_dequantize.h>

#include "runtime/library/record.h"
#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char dense_memory[1024];

class WeightRowsArgs : public Launches {
 protected:
  WeightRowsArgs() {
    op_ = prepared(edited(
        weight_rows_json(),
        {{"/weights",
          R"({"vector_size": 8, "index_bits": 8, "output_scales": true, "stage_scales": true})"}}));
    n_.struct_bytes = sizeof(n_);
    n_.rows = 100;
    n_.first_row = 412;
    n_.out = dense_memory;
    n_.weights = {dense_memory, dense_memory, reinterpret_cast<float*>(dense_memory), 0, 0};
    n_.output_scales = reinterpret_cast<float*>(dense_memory);
  }
  ~WeightRowsArgs() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_weight_dequantize_args* args) {
      return vqgen_weight_dequantize_launch(op_, args, nullptr);
    };
    return Launches::launched(n_, edit, launch, words);
  }

  vqgen_op* op_ = nullptr;
  vqgen_weight_dequantize_args n_{};
};

TEST_F(WeightRowsArgs, SoundOnesPass) {
  for (const std::int64_t each : {1, 99, 100}) {
    EXPECT_EQ(launched([&](auto& n) { n.rows = each; }), VQGEN_OK) << vqgen_last_error();
  }
}

TEST_F(WeightRowsArgs, WhatIsMissingOrNotAlignedIsNamed) {
  EXPECT_EQ(launched([](auto& n) { n.out = nullptr; }, "'out'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.weights.codes = nullptr; }, "'weights'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.weights.scales = nullptr; }, "'weights'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.output_scales = nullptr; }, "'output_scales'"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.out = dense_memory + 8; }, "'out'"), VQGEN_ALIGNMENT);
}

TEST_F(WeightRowsArgs, RowsThatTheWeightsHaveNot) {
  EXPECT_EQ(launched([](auto& n) { n.first_row = 413; }, "first_row"), VQGEN_RANGE);
  EXPECT_EQ(launched([](auto& n) { n.first_row = -1; }, "first_row"), VQGEN_RANGE);
  EXPECT_EQ(launched([](auto& n) { n.rows = 129; }, "rows"), VQGEN_RANGE);
  EXPECT_EQ(launched([](auto& n) { n.rows = -1; }, "rows"), VQGEN_RANGE);
}

TEST_F(WeightRowsArgs, AnotherOpIsRefusedByItsName) {
  vqgen_op* append = prepared(append_json());
  EXPECT_EQ(vqgen_weight_dequantize_launch(append, &n_, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_append_launch"});
  vqgen_op_release(append);
  vqgen_linear_args other{};
  other.struct_bytes = sizeof(other);
  EXPECT_EQ(vqgen_linear_launch(op_, &other, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_weight_dequantize_launch"});
  EXPECT_EQ(vqgen_weight_dequantize_launch(nullptr, &n_, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_weight_dequantize_launch(op_, nullptr, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(WeightRowsArgs, ArriveWhereTheyBelong) {
  std::vector<vq::WeightDequantizeArgs> seen;
  keep_arguments(seen);
  n_.out = dense_memory + 16;
  n_.weights.codes = dense_memory + 48;
  n_.weights.codebooks = dense_memory + 64;
  n_.weights.scales = reinterpret_cast<float*>(dense_memory + 100);
  n_.output_scales = reinterpret_cast<float*>(dense_memory + 120);
  n_.first_row = 7;
  n_.rows = 99;
  ASSERT_EQ(vqgen_weight_dequantize_launch(op_, &n_, nullptr), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(seen.size(), 1u);
  const vq::WeightDequantizeArgs& args = seen.front();
  const auto same = [](const void* a, const void* b) { EXPECT_EQ(a, b); };
  same(args.out, n_.out);
  same(args.weights.codes, n_.weights.codes);
  same(args.weights.codebooks, n_.weights.codebooks);
  same(args.weights.scales, n_.weights.scales);
  same(args.output_scales, n_.output_scales);
  EXPECT_EQ(args.first_row, 7);
  EXPECT_EQ(args.rows, 99);
  EXPECT_EQ(vqgen_op_workspace_bytes(op_), 0u);
  EXPECT_EQ(vqgen_op_bucket(op_, 1), 128);
}

}  // namespace
}  // namespace vqgen::library::test

// vqgen_scalar_launch(): launches that must not happen are refused, each with its status; arguments
// arrive where they belong; and the measures are checked by hand.
#include <vq/args/scalar_matrix.h>

#include <array>
#include <cmath>
#include <limits>

#include "runtime/library/record.h"
#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char space[1 << 20];

class ScalarArgs : public Launches {
 protected:
  ScalarArgs() {
    op_ = prepared(scalar_json());
    n_.struct_bytes = sizeof(n_);
    n_.tokens = 7;
    n_.from = space + 4096;
    n_.to = space + 8192;
    n_.scales = reinterpret_cast<float*>(space + 1024);
    bytes_ = vqgen_op_workspace_bytes(op_);
  }
  ~ScalarArgs() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_scalar_args* args) {
      return vqgen_scalar_launch(op_, args, workspace_, bytes_, nullptr);
    };
    return Launches::launched(n_, edit, launch, words);
  }

  vqgen_op* op_ = nullptr;
  void* workspace_ = space + (1 << 18);
  std::size_t bytes_ = 0;
  vqgen_scalar_args n_{};
};

TEST_F(ScalarArgs, SoundOnesPass) {
  EXPECT_GT(bytes_, 0u);  // shares of the largest magnitudes
  for (const std::int64_t tokens : {0, 1, 1000}) {
    EXPECT_EQ(launched([&](auto& n) { n.tokens = tokens; }), VQGEN_OK) << vqgen_last_error();
  }
}

TEST_F(ScalarArgs, WhatCannotBeIsNamed) {
  EXPECT_EQ(launched([](auto& n) { n.from = nullptr; }, "'from'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.to = nullptr; }, "'to'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.scales = nullptr; }, "'scales'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.tokens = -1; }, "tokens"), VQGEN_RANGE);
  EXPECT_EQ(launched([](auto& n) { n.tokens = 1001; }, "tokens"), VQGEN_RANGE);
  EXPECT_EQ(launched([](auto& n) { n.struct_bytes = 8; }, "struct_bytes"), VQGEN_BAD_INPUT);
  --bytes_;
  EXPECT_EQ(launched([](auto&) {}, "workspace"), VQGEN_WORKSPACE);
}

// With no tokens, computed scales are still written, and nothing else.
TEST_F(ScalarArgs, NoTokensNeedNoMatrix) {
  n_.tokens = 0;
  n_.from = nullptr;
  n_.to = nullptr;
  const int before = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_scalar_launch(op_, &n_, workspace_, bytes_, nullptr), VQGEN_OK)
      << vqgen_last_error();
  EXPECT_GT(fake_.backend->enqueued, before);
  vqgen_op* given = prepared(edited(scalar_json(), {{"/shape/scales", R"("given")"}}));
  const int then = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_scalar_launch(given, &n_, workspace_, bytes_, nullptr), VQGEN_OK)
      << vqgen_last_error();
  EXPECT_EQ(fake_.backend->enqueued, then);
  vqgen_op_release(given);
}

// The required alignments are the widths of the kernels' loads and stores, no more.
TEST_F(ScalarArgs, AlignmentsAreThoseOfTheAccesses) {
  for (const int channels : {64, 20, 3}) {
    vqgen_op_release(op_);
    op_ = prepared(edited(scalar_json(), {{"/shape/channels", std::to_string(channels)}}));
    bytes_ = vqgen_op_workspace_bytes(op_);
    const Demands& demands = op_->record->buckets.back().demands;
    const std::size_t codes = demands.codes_mask + 1, elements = demands.elements_mask + 1;
    EXPECT_EQ(channels % static_cast<int>(codes), 0);
    EXPECT_EQ(launched([&](auto& n) {
                n.from = space + elements;
                n.to = space + 4096 + codes;
                n.scales = reinterpret_cast<float*>(space + 1024 + 16);
              }),
              VQGEN_OK)
        << vqgen_last_error();
    EXPECT_EQ(launched([&](auto& n) { n.from = space + elements / 2; }, "'from'"), VQGEN_ALIGNMENT);
    if (codes > 1) {
      EXPECT_EQ(launched([&](auto& n) { n.to = space + codes / 2; }, "'to'"), VQGEN_ALIGNMENT);
    }
    EXPECT_EQ(launched([](auto& n) { n.scales = reinterpret_cast<float*>(space + 4); }, "'scales'"),
              VQGEN_ALIGNMENT);
  }
}

TEST_F(ScalarArgs, OtherOps) {
  vqgen_op* merge = prepared(merge_json());
  EXPECT_EQ(vqgen_scalar_launch(merge, &n_, workspace_, bytes_, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_attention_merge_launch"});
  vqgen_op_release(merge);
  vqgen_merge_args args{};
  args.struct_bytes = sizeof(args);
  EXPECT_EQ(vqgen_attention_merge_launch(op_, &args, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"int8_quantize", "vqgen_scalar_launch"});
  EXPECT_EQ(vqgen_scalar_launch(nullptr, &n_, workspace_, bytes_, nullptr), VQGEN_BAD_INPUT);
}

// The fallback policy serves each op by the plain plan of that op.
TEST(ScalarFallback, PreparesDataflowForms) {
  FakeRuntime fake({.miss = MissPolicy::fallback});
  const Outcome outcome = fake.prepare(scalar_json());
  ASSERT_NE(outcome.record, nullptr);
  ASSERT_EQ(outcome.record->buckets.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ScalarForms>(outcome.record->buckets.front().plan));
}

TEST(ScalarErrors, ByHand) {
  const float x[] = {1, 2, 3, 4};
  float y[] = {1, 2.5f, 2, 4};
  const float queries[] = {2, 4, 0, 1};
  vqgen_scalar_errors lost{};
  ASSERT_EQ(vqgen_measure_scalar_errors(x, y, 2, 2, queries, 2, &lost), VQGEN_OK);
  EXPECT_EQ(lost.l2, std::sqrt(1.25));
  EXPECT_EQ(lost.largest, 1);
  EXPECT_EQ(lost.mean_score, (2 + 0.5 + 2 + 0) / 4);
  ASSERT_EQ(vqgen_measure_scalar_errors(x, x, 2, 2, nullptr, 0, &lost), VQGEN_OK);
  EXPECT_EQ(lost.l2 + lost.largest + lost.mean_score, 0);
  ASSERT_EQ(vqgen_measure_scalar_errors(nullptr, nullptr, 0, 2, nullptr, 0, &lost), VQGEN_OK);
  EXPECT_EQ(lost.l2, 0);
  y[1] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(vqgen_measure_scalar_errors(x, y, 2, 2, queries, 2, &lost), VQGEN_OK);
  EXPECT_TRUE(std::isnan(lost.l2) && std::isnan(lost.largest) && std::isnan(lost.mean_score));
}

TEST(ScalarErrors, WhatIsMissingIsRefused) {
  const float x[] = {1, 2};
  vqgen_scalar_errors lost{};
  EXPECT_EQ(vqgen_measure_scalar_errors(nullptr, x, 1, 2, nullptr, 0, &lost), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_measure_scalar_errors(x, nullptr, 1, 2, nullptr, 0, &lost), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_measure_scalar_errors(x, x, 1, 2, nullptr, 1, &lost), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_measure_scalar_errors(x, x, 1, 2, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_measure_scalar_errors(x, x, -1, 2, nullptr, 0, &lost), VQGEN_BAD_INPUT);
}

// Sizes that exceed any memory must cause neither a fault in the library nor an endless loop.
TEST(ScalarErrors, SizesThatNoMemoryHas) {
  const float x[] = {1, 2};
  vqgen_scalar_errors lost{};
  const std::int64_t most = INT64_MAX;
  using Sizes = std::array<std::int64_t, 3>;
  for (const auto& [tokens, channels, queries] :
       {Sizes{1, most, 0}, Sizes{most, 1, 0}, Sizes{most, 0, 0}, Sizes{most, most, most},
        Sizes{1, 1, most}, Sizes{0, most, 0}, Sizes{0, 0, most}, Sizes{1 << 30, 1 << 30, 0}}) {
    EXPECT_EQ(vqgen_measure_scalar_errors(x, x, tokens, channels, x, queries, &lost),
              VQGEN_BAD_INPUT);
    expect_words(vqgen_last_error(), {"more numbers than memory has"});
  }
  const std::int64_t many = std::int64_t{1} << 45;
  for (const auto& [tokens, channels, queries] : {Sizes{many, 0, many}, Sizes{0, 1, many}}) {
    EXPECT_EQ(vqgen_measure_scalar_errors(x, x, tokens, channels, x, queries, &lost), VQGEN_OK);
    EXPECT_EQ(lost.l2 + lost.largest + lost.mean_score, 0);
  }
}

}  // namespace
}  // namespace vqgen::library::test

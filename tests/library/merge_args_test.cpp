// vqgen_attention_merge_launch(): launches that must not happen are refused, each with its status,
// and arguments arrive where they belong.
#include <vq/args/attention_merge.h>

#include "runtime/library/record.h"
#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char merged[1024];
float* merged_floats(std::size_t offset) { return reinterpret_cast<float*>(merged + offset); }

class MergeArgs : public Launches {
 protected:
  MergeArgs() {
    op_ = prepared(merge_json());
    n_.struct_bytes = sizeof(n_);
    n_.rows = 7;
    n_.parts = 3;
    n_.outs = outs_;
    n_.lses = lses_;
    n_.out = merged;
    n_.lse = merged_floats(0);
  }
  ~MergeArgs() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_merge_args* args) {
      return vqgen_attention_merge_launch(op_, args, nullptr);
    };
    return Launches::launched(n_, edit, launch, words);
  }

  vqgen_op* op_ = nullptr;
  const void* outs_[3] = {merged + 16, merged + 32, merged + 48};
  const float* lses_[3] = {merged_floats(4), merged_floats(8), merged_floats(12)};
  vqgen_merge_args n_{};
};

TEST_F(MergeArgs, SoundOnesPass) {
  for (const std::int64_t rows : {1, 7, 100}) {
    EXPECT_EQ(launched([&](auto& n) { n.rows = rows; }), VQGEN_OK) << vqgen_last_error();
  }
  outs_[1] = n_.out;  // in place
  lses_[1] = n_.lse;
  EXPECT_EQ(launched([](auto&) {}), VQGEN_OK) << vqgen_last_error();
}

TEST_F(MergeArgs, WhatIsMissingIsNamed) {
  EXPECT_EQ(launched([](auto& n) { n.out = nullptr; }, "'out'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.lse = nullptr; }, "'lse'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.outs = nullptr; }, "'outs'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.lses = nullptr; }, "'lses'"), VQGEN_BAD_INPUT);
  outs_[2] = nullptr;
  EXPECT_EQ(launched([](auto&) {}, "'outs'"), VQGEN_BAD_INPUT);
  outs_[2] = merged;
  lses_[0] = nullptr;
  EXPECT_EQ(launched([](auto&) {}, "'lses'"), VQGEN_BAD_INPUT);
}

// Rows of elements move 16 bytes at a time.
TEST_F(MergeArgs, WhatIsNotAligned) {
  EXPECT_EQ(launched([](auto& n) { n.out = merged + 8; }, "'out'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.lse = merged_floats(2); }, "'lse'"), VQGEN_ALIGNMENT);
  outs_[2] = merged + 2;
  EXPECT_EQ(launched([](auto&) {}, "'outs'"), VQGEN_ALIGNMENT);
  outs_[2] = merged;
  lses_[1] = merged_floats(1);
  EXPECT_EQ(launched([](auto&) {}, "'lses'"), VQGEN_ALIGNMENT);
}

// With no rows nothing is merged, and no array is needed.
TEST_F(MergeArgs, NoRowsAreNoLaunch) {
  n_.rows = 0;
  n_.out = nullptr;
  n_.lse = nullptr;
  n_.outs = nullptr;
  n_.lses = nullptr;
  const int before = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_attention_merge_launch(op_, &n_, nullptr), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(fake_.backend->enqueued, before);
  n_.parts = 2;
  EXPECT_EQ(vqgen_attention_merge_launch(op_, &n_, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(MergeArgs, WhatIsOutOfRange) {
  for (const std::int64_t rows : {-1, 101}) {
    EXPECT_EQ(launched([&](auto& n) { n.rows = rows; }, "rows"), VQGEN_RANGE);
  }
  for (const int parts : {0, 2, 4}) {
    EXPECT_EQ(launched([&](auto& n) { n.parts = parts; }, "parts"), VQGEN_BAD_INPUT);
  }
  EXPECT_EQ(launched([](auto& n) { n.struct_bytes -= 8; }, "struct_bytes"), VQGEN_BAD_INPUT);
}

TEST_F(MergeArgs, AnotherOpIsRefusedByItsName) {
  vqgen_op* append = prepared(append_json());
  EXPECT_EQ(vqgen_attention_merge_launch(append, &n_, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_append_launch"});
  vqgen_op_release(append);
  vqgen_append_args other{};
  other.struct_bytes = sizeof(other);
  EXPECT_EQ(vqgen_append_launch(op_, &other, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_attention_merge_launch"});
  EXPECT_EQ(vqgen_attention_merge_launch(nullptr, &n_, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_attention_merge_launch(op_, nullptr, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(MergeArgs, ArriveWhereTheyBelong) {
  std::vector<vq::AttentionMergeArgs> seen;
  keep_arguments(seen);
  ASSERT_EQ(vqgen_attention_merge_launch(op_, &n_, nullptr), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(seen.size(), 1u);
  const auto same = [](const void* a, const void* b) { EXPECT_EQ(a, b); };
  same(seen.front().out, n_.out);
  same(seen.front().lse, n_.lse);
  for (std::size_t i = 0; i < 3; ++i) {
    same(seen.front().outs[i], outs_[i]);
    same(seen.front().lses[i], lses_[i]);
  }
  EXPECT_EQ(seen.front().rows, 7);
}

// The fallback policy serves each op by the plain plan of that op.
TEST(MergeFallback, PreparesDataflowLanes) {
  FakeRuntime fake({.miss = MissPolicy::fallback});
  const Outcome outcome = fake.prepare(merge_json());
  ASSERT_NE(outcome.record, nullptr);
  ASSERT_EQ(outcome.record->buckets.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<MergeSimt>(outcome.record->buckets.front().plan));
}

}  // namespace
}  // namespace vqgen::library::test

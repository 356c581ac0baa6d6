// vqgen_kv_dequantize_launch(): launches that must not happen are refused, each with its status;
// arguments arrive where they belong; and tokens pick the kernel.
#include <vq/args/kv_dequantize.h>

#include "runtime/library/record.h"
#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char decoded[1024];
template <class T>
T* decoded_at(std::size_t offset) {
  return reinterpret_cast<T*>(decoded + offset);
}

class DequantizeArgs : public Launches {
 protected:
  DequantizeArgs() {
    op_ = prepared(
        edited(dequantize_json(),
               {{"/shape/recent_tokens", "8"},
                {"/shape/tokens", "20000"},
                {"/keys",
                 R"({"vector_size": 4, "index_bits": 8, "smooth": true, "stage_scales": true})"}}));
    n_.struct_bytes = sizeof(n_);
    n_.tokens = 1000;
    n_.out_keys = n_.out_values = decoded;
    n_.keys = {decoded, decoded, decoded_at<float>(0), 1024, 512};
    n_.values = {decoded, decoded, nullptr, 1024, 512};
    n_.key_smooth = decoded_at<float>(0);
    n_.raw_keys = n_.raw_values = decoded;
    n_.raw_batch_stride = 160;
    n_.raw_head_stride = 80;
    n_.lengths = n_.recent_counts = decoded_at<std::int32_t>(0);
  }
  ~DequantizeArgs() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_kv_dequantize_args* args) {
      return vqgen_kv_dequantize_launch(op_, args, nullptr);
    };
    return Launches::launched(n_, edit, launch, words);
  }

  vqgen_op* op_ = nullptr;
  vqgen_kv_dequantize_args n_{};
};

TEST_F(DequantizeArgs, SoundOnesPass) {
  for (const std::int64_t tokens : {1, 1024, 1025, 20000}) {
    EXPECT_EQ(launched([&](auto& n) { n.tokens = tokens; }), VQGEN_OK) << vqgen_last_error();
  }
}

TEST_F(DequantizeArgs, WhatIsMissingIsNamed) {
  EXPECT_EQ(launched([](auto& n) { n.out_keys = nullptr; }, "'out_keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.out_values = nullptr; }, "'out_values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.lengths = nullptr; }, "'lengths'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.recent_counts = nullptr; }, "'recent_counts'"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.keys.codes = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.keys.scales = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.values.codebooks = nullptr; }, "'values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.key_smooth = nullptr; }, "'key_smooth'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_values = nullptr; }, "'raw_values'"), VQGEN_BAD_INPUT);
}

// Rows of elements move 16 bytes at a time.
TEST_F(DequantizeArgs, WhatIsNotAligned) {
  EXPECT_EQ(launched([](auto& n) { n.out_keys = decoded + 8; }, "'out_keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.out_values = decoded + 2; }, "'out_values'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.raw_keys = decoded + 8; }, "'raw_keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.raw_head_stride = 84; }, "'raw_head_s"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.keys.codes = decoded + 2; }, "'keys'"), VQGEN_ALIGNMENT);
}

// With no tokens nothing is written.
TEST_F(DequantizeArgs, NoTokensAreNoLaunch) {
  n_.tokens = 0;
  n_.out_keys = n_.out_values = nullptr;
  const int before = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_kv_dequantize_launch(op_, &n_, nullptr), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(fake_.backend->enqueued, before);
}

TEST_F(DequantizeArgs, WhatIsOutOfRangeOrWouldBeReadTwice) {
  for (const std::int64_t tokens : {-1, 20001}) {
    EXPECT_EQ(launched([&](auto& n) { n.tokens = tokens; }, "tokens"), VQGEN_RANGE);
  }
  EXPECT_EQ(launched([](auto& n) { n.keys.head_stride = 0; }, "'keys.head"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.values.batch_stride = 0; }, "'values.b"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_batch_stride = 0; }, "'raw_batch"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.struct_bytes -= 8; }, "struct_bytes"), VQGEN_BAD_INPUT);
}

TEST_F(DequantizeArgs, AnotherOpIsRefusedByItsName) {
  vqgen_op* append = prepared(append_json());
  EXPECT_EQ(vqgen_kv_dequantize_launch(append, &n_, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_append_launch"});
  vqgen_op_release(append);
  vqgen_append_args other{};
  other.struct_bytes = sizeof(other);
  EXPECT_EQ(vqgen_append_launch(op_, &other, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_kv_dequantize_launch"});
  EXPECT_EQ(vqgen_kv_dequantize_launch(nullptr, &n_, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_kv_dequantize_launch(op_, nullptr, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(DequantizeArgs, ArriveWhereTheyBelong) {
  std::vector<vq::KvDequantizeArgs> seen;
  keep_arguments(seen);
  n_.out_keys = decoded + 16;
  n_.out_values = decoded + 32;
  n_.keys.codes = decoded + 48;
  n_.values.codes = decoded + 52;
  n_.values.codebooks = decoded + 64;
  n_.values.head_stride = 513;
  n_.key_smooth = decoded_at<float>(24);
  n_.raw_keys = decoded + 80;
  n_.raw_values = decoded + 96;
  n_.lengths = decoded_at<std::int32_t>(112);
  n_.recent_counts = decoded_at<std::int32_t>(116);
  n_.sinks = decoded_at<std::int32_t>(120);
  n_.tokens = 999;
  ASSERT_EQ(vqgen_kv_dequantize_launch(op_, &n_, nullptr), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(seen.size(), 1u);
  const vq::KvDequantizeArgs& args = seen.front();
  const auto same = [](const void* a, const void* b) { EXPECT_EQ(a, b); };
  same(args.out_keys, n_.out_keys);
  same(args.out_values, n_.out_values);
  same(args.lengths, n_.lengths);
  same(args.recent_counts, n_.recent_counts);
  same(args.sinks, n_.sinks);
  expect_same_cache(args, n_);
  EXPECT_EQ(args.keys.batch_stride, 1024);
  EXPECT_EQ(args.values.head_stride, 513);
  EXPECT_EQ(args.raw_batch_stride, 160);
  EXPECT_EQ(args.raw_head_stride, 80);
  EXPECT_EQ(args.tokens, 999);
}

// The grid grows with the tokens, so each size has a kernel, also if plans are equal.
TEST_F(DequantizeArgs, SizesHaveKernelsOfTheirOwn) {
  EXPECT_EQ(vqgen_op_bucket(op_, 1), 1024);
  EXPECT_EQ(vqgen_op_bucket(op_, 1024), 1024);
  EXPECT_EQ(vqgen_op_bucket(op_, 1025), 4096);
  EXPECT_EQ(vqgen_op_bucket(op_, 16385), 20000);
  EXPECT_EQ(vqgen_op_bucket(op_, 20001), 0);
  EXPECT_EQ(vqgen_op_workspace_bytes(op_), 0u);
}

// The fallback policy serves each op by the plain plan of that op.
TEST(DecodeFallback, PreparesDataflowLanes) {
  FakeRuntime fake({.miss = MissPolicy::fallback});
  const Outcome outcome = fake.prepare(dequantize_json());
  ASSERT_NE(outcome.record, nullptr);
  EXPECT_TRUE(std::holds_alternative<DequantizeSimt>(outcome.record->buckets.front().plan));
}

}  // namespace
}  // namespace vqgen::library::test

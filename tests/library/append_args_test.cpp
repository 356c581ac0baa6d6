// vqgen_append_launch(): launches that must not happen are refused, each with its status; arguments
// arrive where they belong; and an op has one kernel whatever the cache's size.
#include <vq/args/kv_append.h>

#include "runtime/library/record.h"
#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char storage[512];
template <class T>
T* place(std::size_t offset) {
  return reinterpret_cast<T*>(storage + offset);
}

class AppendArgs : public Launches {
 protected:
  AppendArgs() {
    op_ = prepared(
        edited(append_json(), {{"/shape/recent_tokens", "8"},
                               {"/keys", R"({"vector_size": 4, "index_bits": 8, "smooth": true,
                                         "stage_scales": true})"}}));
    n_.struct_bytes = sizeof(n_);
    n_.tokens = 1000;
    n_.new_keys = n_.new_values = storage;
    n_.positions = place<std::int32_t>(0);
    n_.keys = {storage, storage, place<float>(0), 1 << 19, 1 << 18};
    n_.values = {storage, storage, nullptr, 1 << 19, 1 << 18};
    n_.key_smooth = place<float>(0);
    n_.raw_keys = n_.raw_values = storage;
    n_.raw_batch_stride = 1 << 17;
    n_.raw_head_stride = 1 << 14;
  }
  ~AppendArgs() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_append_args* args) {
      return vqgen_append_launch(op_, args, nullptr, 0, nullptr);
    };
    return Launches::launched(n_, edit, launch, words);
  }

  vqgen_op* op_ = nullptr;
  vqgen_append_args n_{};
};

TEST_F(AppendArgs, SoundOnesPass) {
  EXPECT_EQ(launched([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(launched([](auto& n) { n.tokens = 1; }), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(launched([](auto& n) { n.counts = n.positions; }), VQGEN_OK) << vqgen_last_error();
}

TEST_F(AppendArgs, WhatIsMissingIsNamed) {
  EXPECT_EQ(launched([](auto& n) { n.new_keys = nullptr; }, "'new_keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.new_values = nullptr; }, "'new_values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.positions = nullptr; }, "'positions'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.keys.codes = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.keys.scales = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.values.codebooks = nullptr; }, "'values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.key_smooth = nullptr; }, "'key_smooth'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_keys = nullptr; }, "'raw_keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_values = nullptr; }, "'raw_values'"), VQGEN_BAD_INPUT);
}

TEST_F(AppendArgs, WhatIsNotAligned) {
  EXPECT_EQ(launched([](auto& n) { n.new_keys = storage + 1; }, "'new_keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.counts = place<std::int32_t>(2); }, "'counts'"),
            VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.keys.codes = storage + 2; }, "'keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.values.codebooks = storage + 8; }, "'values'"),
            VQGEN_ALIGNMENT);
  EXPECT_EQ(launched([](auto& n) { n.raw_keys = storage + 1; }, "'raw_keys'"), VQGEN_ALIGNMENT);
}

// All heads or sequences would be written to the first one's rows.
TEST_F(AppendArgs, WhatIsOutOfRangeOrWouldBeWrittenTwice) {
  for (const std::int64_t tokens : {std::int64_t{-1}, std::int64_t{1001}}) {
    EXPECT_EQ(launched([&](auto& n) { n.tokens = tokens; }, "tokens"), VQGEN_RANGE);
  }
  EXPECT_EQ(launched([](auto& n) { n.keys.head_stride = -1; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.keys.head_stride = 0; }, "'keys.head"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.values.batch_stride = 0; }, "'values.b"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_batch_stride = 0; }, "'raw_batch"), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.struct_bytes -= 8; }, "struct_bytes"), VQGEN_BAD_INPUT);
}

// Rows of one sequence or head that overlap another's, in any order of the two strides.
TEST_F(AppendArgs, SequencesAndHeadsThatOverlap) {
  const std::int64_t heads = 1 << 18, most = INT64_MAX / 8 * 8;
  const auto keys = [&](std::int64_t batch, std::int64_t head) {
    return launched(
        [&](auto& n) {
          n.keys.batch_stride = batch;
          n.keys.head_stride = head;
        },
        "");
  };
  EXPECT_EQ(keys(heads, 8 * heads), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(keys(most, heads), VQGEN_OK) << vqgen_last_error();
  for (const auto& [batch, head] : {std::pair{heads, heads},
                                    {heads + 8, heads},
                                    {heads, heads + 8},
                                    {std::int64_t{8}, heads},
                                    {most, std::int64_t{8}},
                                    {most, most}}) {
    EXPECT_EQ(keys(batch, head), VQGEN_BAD_INPUT) << batch << " " << head;
    expect_words(vqgen_last_error(), {"keys.batch_stride or keys.head_stride"});
  }
  EXPECT_EQ(launched([](auto& n) { n.values.head_stride = 8; }, "values.batch_stride or"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& n) { n.raw_head_stride = 8; }, "raw_batch_stride or"),
            VQGEN_BAD_INPUT);
}

// Without room for a token nothing is written.
TEST_F(AppendArgs, NoRoomIsNoLaunch) {
  n_.tokens = 0;
  const int before = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_append_launch(op_, &n_, nullptr, 0, nullptr), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(fake_.backend->enqueued, before);
}

TEST_F(AppendArgs, AnotherOpIsRefusedByItsName) {
  vqgen_op* gemv = prepared(gemv_json());
  EXPECT_EQ(vqgen_append_launch(gemv, &n_, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_linear_launch"});
  vqgen_op_release(gemv);
  vqgen_attention_args attention{};
  attention.struct_bytes = sizeof(attention);
  EXPECT_EQ(vqgen_attention_launch(op_, &attention, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"vqgen_append_launch"});
  vqgen_linear_args linear{};
  linear.struct_bytes = sizeof(linear);
  EXPECT_EQ(vqgen_linear_launch(op_, &linear, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_append_launch(nullptr, &n_, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_append_launch(op_, nullptr, nullptr, 0, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(AppendArgs, ArriveWhereTheyBelong) {
  std::vector<vq::KvAppendArgs> seen;
  keep_arguments(seen);
  n_.new_keys = storage + 2;
  n_.new_values = storage + 4;
  n_.positions = place<std::int32_t>(8);
  n_.counts = place<std::int32_t>(12);
  n_.keys.codes = storage + 16;
  n_.values.codes = storage + 20;
  n_.values.codebooks = storage + 32;
  n_.values.head_stride = (1 << 18) - 1;
  n_.key_smooth = place<float>(24);
  n_.raw_keys = storage + 48;
  n_.raw_values = storage + 50;
  n_.tokens = 999;
  ASSERT_EQ(vqgen_append_launch(op_, &n_, nullptr, 0, nullptr), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(seen.size(), 1u);
  const vq::KvAppendArgs& args = seen.front();
  const auto same = [](const void* a, const void* b) { EXPECT_EQ(a, b); };
  same(args.new_keys, n_.new_keys);
  same(args.new_values, n_.new_values);
  same(args.positions, n_.positions);
  same(args.counts, n_.counts);
  expect_same_cache(args, n_);
  EXPECT_EQ(args.keys.batch_stride, 1 << 19);
  EXPECT_EQ(args.values.head_stride, (1 << 18) - 1);
  EXPECT_EQ(args.raw_batch_stride, 1 << 17);
  EXPECT_EQ(args.raw_head_stride, 1 << 14);
  EXPECT_EQ(args.capacity, 999);
  EXPECT_EQ(args.batch, 2);
}

TEST_F(AppendArgs, OneKernelServesAllCapacities) {
  EXPECT_EQ(fake_.backend->compilations, 1);
  EXPECT_EQ(op_->record->buckets.size(), 1u);
  for (const std::int64_t tokens : {1, 999, 1000}) EXPECT_EQ(vqgen_op_bucket(op_, tokens), 1000);
  EXPECT_EQ(vqgen_op_bucket(op_, 1001), 0);
  char* text = nullptr;
  const std::string config = append_json().dump();
  ASSERT_EQ(vqgen_enumerate(&fake_.runtime, config.c_str(), 1, 1000, &text), VQGEN_OK)
      << vqgen_last_error();
  EXPECT_EQ(parse_json(text, "enumerated").size(), 1u);
  vqgen_text_free(text);
}

// The fallback policy serves each op by the plain plan of that op.
TEST(AppendFallback, PreparesDataflowLanes) {
  FakeRuntime fake({.miss = MissPolicy::fallback});
  const Outcome outcome = fake.prepare(append_json());
  ASSERT_NE(outcome.record, nullptr);
  EXPECT_TRUE(std::holds_alternative<AppendSimt>(outcome.record->buckets.front().plan));
}

}  // namespace
}  // namespace vqgen::library::test

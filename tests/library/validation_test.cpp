// Launches that must not happen are refused, each with its status, and nothing is enqueued.
#include <cmath>
#include <limits>

#include <vq/args/attention_decode.h>
#include <vq/args/linear.h>

#include "tests/library/launches.h"

namespace vqgen::library::test {
namespace {

alignas(256) char buffer[512];
char* at(std::size_t offset) { return buffer + offset; }
template <class T>
T* as(char* pointer) {
  return reinterpret_cast<T*>(pointer);
}

class Validation : public Launches {
 protected:
  Validation() {
    attention_ = prepared(own_config());
    gemv_ = prepared(
        edited(gemv_json(), {{"/shape/m", "5"}, {"/weights", R"({"vector_size": 8, "index_bits": 8,
                                                          "output_scales": true})"}}));
    a_.struct_bytes = sizeof(a_);
    a_.tokens = 1000;
    a_.out = buffer;
    a_.query = a_.raw_keys = a_.raw_values = buffer;
    a_.lse = as<float>(buffer);
    a_.keys = {buffer, buffer, as<float>(buffer), 1024, 512};
    a_.values = {buffer, buffer, nullptr, 1024, 512};
    a_.key_smooth = as<float>(buffer);
    a_.raw_batch_stride = 160;
    a_.raw_head_stride = 80;
    a_.lengths = a_.recent_counts = a_.sinks = as<std::int32_t>(buffer);
    l_.struct_bytes = sizeof(l_);
    l_.m = 5;
    l_.x = l_.y = buffer;
    l_.weights = {buffer, buffer, nullptr, 0, 0};
    l_.output_scales = as<float>(buffer);
  }
  static Json own_config() {
    return edited(attention_json(),
                  {{"/shape/recent_tokens", "32"},
                   {"/shape/sinks", "4"},
                   {"/keys", R"({"vector_size": 4, "index_bits": 8, "smooth": true,
                                 "stage_scales": true})"}});
  }
  ~Validation() override {
    vqgen_op_release(attention_);
    vqgen_op_release(gemv_);
  }
  // The status of a launch with edited arguments; its message has `words`.
  template <class Edit>
  vqgen_status attention(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_attention_args* args) {
      return vqgen_attention_launch(attention_, args, at(0), 1 << 30, nullptr);
    };
    return launched(a_, edit, launch, words);
  }
  template <class Edit>
  vqgen_status linear(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_linear_args* args) {
      return vqgen_linear_launch(gemv_, args, at(0), 1 << 30, nullptr);
    };
    return launched(l_, edit, launch, words);
  }

  vqgen_op* attention_ = nullptr;
  vqgen_op* gemv_ = nullptr;
  vqgen_attention_args a_{};
  vqgen_linear_args l_{};
};

TEST_F(Validation, SoundArgumentsPass) {
  EXPECT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(linear([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention([](auto& a) { a.tokens = 0; }), VQGEN_OK) << vqgen_last_error();
}

TEST_F(Validation, WhatIsMissingIsNamed) {
  EXPECT_EQ(attention([](auto& a) { a.query = nullptr; }, "'query'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.out = nullptr; }, "'out'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.lse = nullptr; }, "'lse'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.keys.codes = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.keys.scales = nullptr; }, "'keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.values.codebooks = nullptr; }, "'values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.key_smooth = nullptr; }, "'key_smooth'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.raw_keys = nullptr; }, "'raw_keys'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.raw_values = nullptr; }, "'raw_values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.lengths = nullptr; }, "'lengths'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.recent_counts = nullptr; }, "'recent_counts'"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.sinks = nullptr; }, "'sinks'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.sink_logits = as<float>(at(0)); },
                      "sink_logits of the config is not true"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(linear([](auto& l) { l.x = nullptr; }, "'x'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(linear([](auto& l) { l.y = nullptr; }, "'y'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(linear([](auto& l) { l.weights.codes = nullptr; }, "'weights'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(linear([](auto& l) { l.output_scales = nullptr; }, "'output_scales'"), VQGEN_BAD_INPUT);
}

TEST_F(Validation, QueryTokensAreAskedForAsTheConfigHasThem) {
  const auto start = as<std::int32_t>(buffer);
  EXPECT_EQ(attention([&](auto& a) { a.query_start = start; }, "'query_start'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.new_keys = start; }, "query_tokens"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.new_values = start; }, "'new_values'"), VQGEN_BAD_INPUT);
  vqgen_op_release(attention_);
  attention_ = prepared(edited(own_config(), {{"/shape/query_tokens", "4"}}));
  EXPECT_EQ(attention([](auto&) {}, "'query_start'"), VQGEN_BAD_INPUT);
  a_.query_start = start;
  EXPECT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention([&](auto& a) { a.new_keys = start; }, "'new_values'"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.new_values = start; }, "'new_keys'"), VQGEN_BAD_INPUT);
  a_.new_keys = a_.new_values = start;
  EXPECT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention([](auto& a) { a.new_keys = at(8); }, "'new_keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(attention([](auto& a) { a.query_start = as<std::int32_t>(at(2)); }, "'query_start'"),
            VQGEN_ALIGNMENT);
}

TEST_F(Validation, PrefixesBringNoTokens) {
  vqgen_op_release(attention_);
  attention_ = prepared(edited(own_config(), {{"/shape/query_tokens", "40"},
                                              {"/shape/shared_prefix", "true"},
                                              {"/shape/recent_tokens", "0"},
                                              {"/shape/sinks", "0"}}));
  a_.query_start = as<std::int32_t>(buffer);
  a_.raw_keys = a_.raw_values = nullptr;
  a_.recent_counts = a_.sinks = nullptr;
  EXPECT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention([](auto& a) { a.new_keys = a.new_values = buffer; },
                      "'new_keys' is given, and query_tokens of the config is 1, or shared_prefix"),
            VQGEN_BAD_INPUT);
}

TEST_F(Validation, TreesComeWithTheirDrafts) {
  const auto masks = as<std::int64_t>(buffer);
  EXPECT_EQ(attention([&](auto& a) { a.tree_mask = masks; }, "tree_mask of the config is not true"),
            VQGEN_BAD_INPUT);
  vqgen_op_release(attention_);
  attention_ =
      prepared(edited(own_config(), {{"/shape/query_tokens", "4"}, {"/shape/tree_mask", "true"}}));
  a_.query_start = as<std::int32_t>(buffer);
  EXPECT_EQ(attention([](auto&) {}, "'tree_mask'"), VQGEN_BAD_INPUT);
  a_.tree_mask = masks;
  EXPECT_EQ(attention([](auto&) {}, "new_keys and new_values are null, and tree_mask"),
            VQGEN_BAD_INPUT);
  a_.new_keys = a_.new_values = buffer;
  EXPECT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention([](auto& a) { a.tree_mask = as<std::int64_t>(at(2)); }, "'tree_mask'"),
            VQGEN_ALIGNMENT);
}

TEST_F(Validation, WhatIsNotAligned) {
  EXPECT_EQ(attention([](auto& a) { a.query = at(1); }, "'query'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(attention([](auto& a) { a.lse = as<float>(at(2)); }, "'lse'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(attention([](auto& a) { a.keys.codes = at(2); }, "'keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(attention([](auto& a) { a.values.codebooks = at(8); }, "'values'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(linear([](auto& l) { l.weights.codebooks = at(4); }, "'weights'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(linear([](auto& l) { l.y = at(1); }, "'y'"), VQGEN_ALIGNMENT);
  // The mma dataflow, which both ops have here, requires more.
  const Demands& demands = attention_->record->buckets.back().demands;
  ASSERT_EQ(demands.elements_mask, 15u);
  EXPECT_EQ(attention([](auto& a) { a.raw_keys = at(8); }, "'raw_keys'"), VQGEN_ALIGNMENT);
  EXPECT_EQ(attention([](auto& a) { a.raw_head_stride = 12; }, "'raw_head_stride'"),
            VQGEN_ALIGNMENT);
  EXPECT_EQ(linear([](auto& l) { l.x = at(8); }, "'x'"), VQGEN_ALIGNMENT);
  if (demands.codes_mask > 3) {
    EXPECT_EQ(attention([](auto& a) { a.keys.codes = at(4); }, "'keys'"), VQGEN_ALIGNMENT);
    EXPECT_EQ(attention([](auto& a) { a.keys.head_stride = 513; }, "'keys'"), VQGEN_ALIGNMENT);
  }
}

TEST_F(Validation, WhatIsOutOfRange) {
  EXPECT_EQ(attention([](auto& a) { a.tokens = 1001; }, "tokens"), VQGEN_RANGE);
  EXPECT_EQ(attention([](auto& a) { a.tokens = -1; }, "tokens"), VQGEN_RANGE);
  EXPECT_EQ(attention([](auto& a) { a.tokens = INT64_MAX; }, "tokens"), VQGEN_RANGE);
  EXPECT_EQ(linear([](auto& l) { l.m = -1; }, "m"), VQGEN_RANGE);
  EXPECT_EQ(linear([](auto& l) { l.m = 6; }, "m"), VQGEN_RANGE);
  EXPECT_EQ(attention([](auto& a) { a.keys.head_stride = -1; }, "'keys'"), VQGEN_BAD_INPUT);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(attention([&](auto& a) { a.softmax_scale = nan; }, "softmax"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.softmax_scale = -1; }, "softmax"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([&](auto& a) { a.softmax_scale = INFINITY; }, "softmax"), VQGEN_BAD_INPUT);
}

// All heads or sequences would read the first one's codes.
TEST_F(Validation, StridesOfZeroAreForWhatIsSingle) {
  const auto heads_refused = [&] {
    EXPECT_EQ(attention([](auto& a) { a.keys.head_stride = 0; }, "'keys.head"), VQGEN_BAD_INPUT);
    EXPECT_EQ(attention([](auto& a) { a.values.head_stride = 0; }, "'values.h"), VQGEN_BAD_INPUT);
    EXPECT_EQ(attention([](auto& a) { a.raw_head_stride = 0; }, "'raw_head_"), VQGEN_BAD_INPUT);
  };
  heads_refused();
  EXPECT_EQ(attention([](auto& a) { a.keys.batch_stride = 0; }, "'keys.batch"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.values.batch_stride = 0; }, "'values.b"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention([](auto& a) { a.raw_batch_stride = 0; }, "'raw_batch"), VQGEN_BAD_INPUT);
  const auto swap_op = [&](const std::vector<Edit>& edits) {
    vqgen_op_release(attention_);
    attention_ = prepared(edited(attention_json(), edits));
  };
  swap_op({{"/shape/recent_tokens", "32"}, {"/shape/batch", "1"}});
  heads_refused();
  const auto one_sequence = [](auto& a) {
    a.keys.batch_stride = a.values.batch_stride = a.raw_batch_stride = 0;
  };
  EXPECT_EQ(attention(one_sequence), VQGEN_OK) << vqgen_last_error();
  swap_op({{"/shape/batch", "1"}, {"/shape/kv_heads", "1"}});
  const auto single = [](auto& a) {
    a.keys.batch_stride = a.keys.head_stride = 0;
    a.values.batch_stride = a.values.head_stride = 0;
    a.raw_batch_stride = a.raw_head_stride = 0;
  };
  EXPECT_EQ(attention(single), VQGEN_OK) << vqgen_last_error();
}

TEST_F(Validation, RawValuesHaveStridesWhereTheirRowsHaveAnotherSize) {
  const auto given = [](auto& a) { a.raw_value_strides = {160, 80, 0}; };
  EXPECT_EQ(attention(given, "raw_value_strides is given, and there are no raw values of another"),
            VQGEN_BAD_INPUT);
  vqgen_op_release(attention_);
  attention_ = prepared(edited(own_config(), {{"/shape/value_head_dim", "64"}}));
  EXPECT_EQ(attention([](auto&) {}, "'raw_value_strides.batch"), VQGEN_BAD_INPUT);
  EXPECT_EQ(attention(given), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(attention(
                [](auto& a) {
                  a.raw_value_strides = {160, 80, 80};
                },
                "raw_value_strides.token is given, and raw tokens are in slots"),
            VQGEN_BAD_INPUT);
  vqgen_op_release(attention_);
  attention_ = prepared(edited(
      own_config(),
      {{"/shape/value_head_dim", "64"}, {"/shape/recent_tokens", "0"}, {"/shape/sinks", "0"}}));
  EXPECT_EQ(attention(
                [](auto& a) {
                  a.raw_value_strides = {160, 80, 0};
                },
                "raw_value_strides is given, and there are no raw values"),
            VQGEN_BAD_INPUT);
}

TEST_F(Validation, RowsBetweenBucketsArriveAsTheyAre) {
  EXPECT_EQ(vqgen_op_bucket(gemv_, 3), 4);
  EXPECT_EQ(vqgen_op_bucket(gemv_, 5), 5);
  EXPECT_EQ(vqgen_op_bucket(gemv_, 6), 0);
  std::vector<vq::i32> seen;
  fake_.backend->on_enqueue = [&](const FakeKernel&, std::span<const std::byte> bytes) {
    vq::LinearArgs args{};
    ASSERT_EQ(bytes.size(), sizeof(args));
    std::memcpy(&args, bytes.data(), bytes.size());
    seen.push_back(args.rows);
  };
  EXPECT_EQ(linear([](auto& l) { l.m = 3; }), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(linear([](auto& l) { l.m = 5; }), VQGEN_OK) << vqgen_last_error();
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.front(), 3);
  EXPECT_EQ(seen.back(), 5);
}

TEST_F(Validation, WorkspacesTooSmallNullOrAskew) {
  const Json split = edited(gemv_json(), {{"/plan", R"({"splits": 2, "combine": "kernel"})"}});
  vqgen_op* op = prepared(split);
  vqgen_linear_args args = l_;
  args.m = 2;
  const std::size_t bytes = vqgen_op_workspace_bytes_for(op, 2);
  ASSERT_EQ(bytes, 2u * 2 * 512 * 4);
  EXPECT_EQ(vqgen_op_workspace_bytes(op), bytes);
  EXPECT_EQ(vqgen_op_workspace_bytes_for(op, 3), 0u);
  const auto launch = [&](char* workspace, std::size_t given) {
    return vqgen_linear_launch(op, &args, workspace, given, nullptr);
  };
  EXPECT_EQ(launch(at(0), bytes), VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(launch(at(0), bytes - 1), VQGEN_WORKSPACE);
  EXPECT_EQ(launch(nullptr, bytes), VQGEN_WORKSPACE);
  EXPECT_EQ(launch(at(8), bytes), VQGEN_WORKSPACE);
  vqgen_op_release(op);
}

// vqgen_workspace_init() exists for older programs, and does nothing.
TEST_F(Validation, AWorkspaceNeedsNoInitialisation) {
  buffer[0] = 17;
  EXPECT_EQ(vqgen_workspace_init(&fake_.runtime, buffer, sizeof(buffer), nullptr), VQGEN_OK);
  EXPECT_EQ(vqgen_workspace_init(nullptr, nullptr, 0, nullptr), VQGEN_OK);
  EXPECT_EQ(buffer[0], 17);
}

TEST_F(Validation, WrongStructsOpsAndPointers) {
  EXPECT_EQ(attention([](auto& a) { a.struct_bytes -= 8; }, "struct_bytes"), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_attention_launch(gemv_, &a_, at(0), 1 << 30, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_linear_launch(attention_, &l_, at(0), 1 << 30, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_linear_launch(nullptr, &l_, at(0), 1 << 30, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_linear_launch(gemv_, nullptr, at(0), 1 << 30, nullptr), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_prepare(nullptr, "{}", nullptr, &gemv_), VQGEN_BAD_INPUT);
  vqgen_options options;
  vqgen_options_init(&options);
  vqgen_runtime* runtime = nullptr;
  options.backend = 2;
  EXPECT_EQ(vqgen_runtime_create(&options, &runtime), VQGEN_BAD_INPUT);
  options.backend = VQGEN_HOST;
  options.threads = 0;
  EXPECT_EQ(vqgen_runtime_create(&options, &runtime), VQGEN_BAD_INPUT);
  options.threads = 1;
  options.dependent_launches = 2;
  EXPECT_EQ(vqgen_runtime_create(&options, &runtime), VQGEN_BAD_INPUT);
  options.dependent_launches = 1;
  options.struct_bytes -= 1;
  EXPECT_EQ(vqgen_runtime_create(&options, &runtime), VQGEN_BAD_INPUT);
  EXPECT_EQ(runtime, nullptr);
}

TEST_F(Validation, FaultsOfALaunchAreStatusesToo) {
  fake_.backend->on_enqueue = [](const FakeKernel&, std::span<const std::byte>) {
    throw Error(ErrorKind::device, "the driver\nfailed");
  };
  EXPECT_EQ(vqgen_linear_launch(gemv_, &l_, at(0), 1 << 30, nullptr), VQGEN_DEVICE);
  EXPECT_STREQ(vqgen_last_error(), "the driver failed");
}

// An empty batch may have a null x and y.
TEST_F(Validation, NoRowsAreNoLaunch) {
  l_.m = 0;
  l_.x = nullptr;
  l_.y = nullptr;
  const int before = fake_.backend->enqueued;
  EXPECT_EQ(vqgen_linear_launch(gemv_, &l_, at(0), 1 << 30, nullptr), VQGEN_OK)
      << vqgen_last_error();
  EXPECT_EQ(fake_.backend->enqueued, before);
  l_.weights.codes = nullptr;
  EXPECT_EQ(vqgen_linear_launch(gemv_, &l_, at(0), 1 << 30, nullptr), VQGEN_BAD_INPUT);
}

TEST_F(Validation, AThreadHasItsOwnLastError) {
  EXPECT_EQ(linear([](auto& l) { l.m = 6; }, "m"), VQGEN_RANGE);
  std::string other = "unset";
  std::jthread([&] { other = vqgen_last_error(); }).join();
  EXPECT_EQ(other, "");
  expect_words(vqgen_last_error(), {"m is"});
}

// The kernels' structs, field by field where a mix-up would go unnoticed.
TEST_F(Validation, ArgumentsArriveWhereTheyBelong) {
  std::vector<vq::AttentionDecodeArgs> seen;
  fake_.backend->on_enqueue = [&](const FakeKernel&, std::span<const std::byte> bytes) {
    ASSERT_EQ(bytes.size(), sizeof(vq::AttentionDecodeArgs));
    std::memcpy(&seen.emplace_back(), bytes.data(), bytes.size());
  };
  a_.key_smooth = as<float>(at(16));
  a_.recent_counts = as<std::int32_t>(at(32));
  a_.sinks = as<std::int32_t>(at(48));
  a_.keys.codes = at(64);
  a_.values.codes = at(80);
  ASSERT_EQ(attention([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  ASSERT_FALSE(seen.empty());
  const vq::AttentionDecodeArgs& args = seen.front();
  EXPECT_EQ(args.key_smooth, a_.key_smooth);
  EXPECT_EQ(args.recent_counts, a_.recent_counts);
  EXPECT_EQ(args.sinks, a_.sinks);
  EXPECT_EQ(static_cast<const void*>(args.keys.codes), a_.keys.codes);
  EXPECT_EQ(static_cast<const void*>(args.values.codes), a_.values.codes);
  EXPECT_EQ(args.raw_batch_stride, 160);
  EXPECT_EQ(args.raw_head_stride, 80);
  EXPECT_EQ(args.keys.batch_stride, 1024);
  EXPECT_FLOAT_EQ(args.softmax_scale, 1 / std::sqrt(128.0f));
}

}  // namespace
}  // namespace vqgen::library::test

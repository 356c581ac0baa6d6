// On a GPU: prepared ops on the caller's streams, and under stream capture, in which a launch does
// nothing else and a new op is refused.
#include "tests/library/on_device.h"

namespace vqgen::library::test {
namespace {

TEST_F(OnDevice, AttentionAndProductsOnTheCallersStream) {
  vqgen_op* attention = prepared(runtime_, small_attention());
  for (const std::int64_t tokens : {1, 1024, 1500}) {
    AttentionTrial trial(runtime_,
                         std::get<AttentionDecode>(read_config(small_attention(), "test").problem),
                         tokens);
    ASSERT_EQ(trial.launch(attention, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op* gemv = prepared(runtime_, small_gemv());
  for (const int rows : {1, 3, 5}) {
    LinearTrial trial(runtime_, *as_linear(read_config(small_gemv(), "test").problem), rows);
    ASSERT_EQ(trial.launch(gemv, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op* append = prepared(runtime_, small_append());
  for (const std::int64_t tokens : {1, 17, 30}) {
    AppendTrial trial(std::get<KvAppend>(read_config(small_append(), "test").problem), runtime_,
                      tokens);
    ASSERT_EQ(trial.launch(append, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op* decode = prepared(runtime_, small_dequantize());
  for (const std::int64_t tokens : {1, 700, 1100}) {
    DequantizeTrial trial(std::get<KvDequantize>(read_config(small_dequantize(), "test").problem),
                          runtime_, tokens);
    ASSERT_EQ(trial.launch(decode, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op* merge = prepared(runtime_, small_merge());
  for (const std::int64_t rows : {1, 2, 3, 100}) {
    MergeTrial trial(std::get<AttentionMerge>(read_config(small_merge(), "test").problem), runtime_,
                     rows);
    ASSERT_EQ(trial.launch(merge, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op_release(attention);
  vqgen_op_release(gemv);
  vqgen_op_release(append);
  vqgen_op_release(decode);
  vqgen_op_release(merge);
}

TEST_F(OnDevice, AnAppendIsCapturedAndReplayed) {
  for (const int page_tokens : {0, 16, 64}) {
    const Json config = in_pages(small_append(), page_tokens);
    vqgen_op* op = prepared(runtime_, config);
    AppendTrial trial(std::get<KvAppend>(read_config(config, "test").problem), runtime_, 30);
    ASSERT_EQ(trial.launch(op, stream_), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
    expect_captured_replays(trial, 2, [&] { return trial.launch(op, stream_); });
    vqgen_op_release(op);
  }
}

TEST_F(OnDevice, AttentionInPagesIsCapturedAndReplayed) {
  for (const int page_tokens : {16, 64}) {
    const Json config = in_pages(small_attention(), page_tokens);
    vqgen_op* op = prepared(runtime_, config);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      AttentionTrial trial(runtime_, std::get<AttentionDecode>(read_config(config, "test").problem),
                           1500, seed);
      ASSERT_EQ(trial.launch(op, stream_), VQGEN_OK) << vqgen_last_error();
      ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
      expect_captured_replays(trial, 2, [&] { return trial.relaunch(op, stream_); });
    }
    vqgen_op_release(op);
  }
}

TEST_F(OnDevice, ALaunchIsCapturedAndReplayed) {
  const Json config = small_attention();
  vqgen_op* op = prepared(runtime_, config);
  AttentionTrial trial(runtime_, std::get<AttentionDecode>(read_config(config, "test").problem),
                       1500);
  ASSERT_EQ(trial.launch(op, stream_), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
  trial.poison();

  constexpr int kGlobalMode = 0;  // the strictest: nothing unsafe on any thread
  void* graph = nullptr;
  vqgen_op* other = nullptr;
  ASSERT_EQ(driver_function<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, kGlobalMode),
            0);
  const vqgen_status launched = trial.relaunch(op, stream_);
  const std::string why = vqgen_last_error();
  const vqgen_status known = vqgen_prepare(runtime_, config.dump().c_str(), stream_, &other);
  vqgen_op_release(other);
  const std::string unknown_config = small_gemv().dump();
  const vqgen_status unknown = vqgen_prepare(runtime_, unknown_config.c_str(), stream_, &other);
  ASSERT_EQ(driver_function<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
  EXPECT_EQ(launched, VQGEN_OK) << why;
  EXPECT_EQ(known, VQGEN_OK);
  EXPECT_EQ(unknown, VQGEN_CAPTURING);

  expect_replays(graph, trial, 2);
  vqgen_op_release(op);
}

// Two launches per replay, all with one workspace whose counters were zeroed once.
TEST_F(OnDevice, LaunchesWhoseLastBlockMergesAreReplayed) {
  const Json config = edited(
      small_gemv(), {{"/shape/m", "1"}, {"/plan", R"({"splits": 2, "combine": "last_block"})"}});
  vqgen_op* op = prepared(runtime_, config);
  ASSERT_NE(op, nullptr);
  LinearTrial trial(runtime_, *as_linear(read_config(config, "test").problem), 1);
  ASSERT_EQ(trial.launch(op, stream_), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
  trial.expect_right();
  trial.poison();
  constexpr int kGlobalMode = 0;
  ASSERT_EQ(driver_function<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, kGlobalMode),
            0);
  const vqgen_status first = trial.relaunch(op, stream_);
  const vqgen_status second = trial.relaunch(op, stream_);
  void* graph = nullptr;
  ASSERT_EQ(driver_function<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
  EXPECT_EQ(first, VQGEN_OK);
  EXPECT_EQ(second, VQGEN_OK);
  expect_replays(graph, trial, 3);
  vqgen_op_release(op);
}

// A square GEMV whose every launch multiplies what the previous one stored, with no wait between.
class ChainTrial {
 public:
  ChainTrial(vqgen_runtime* runtime, vqgen_op* op)
      : runtime_(runtime), op_(op), backend_(runtime->registry->backend()), device_(backend_) {
    data_ = make_linear_data(*as_linear(read_config(square_gemv(), "test").problem), {.seed = 5});
    std::uint32_t state = 1;
    const auto sign = [&] {
      return ((state = state * 1664525u + 1013904223u) >> 31) == 0 ? 1 : -1;
    };
    // With two stages of +-1/64 and 2048 columns, sums keep the size of the elements of x.
    for (std::uint16_t& each : data_.weights.codebooks) {
      each = element_from_float(DType::f16, static_cast<float>(sign()) / 64.0f);
    }
    for (float& each : data_.weights.output_scales) each = 1.0f;
    for (std::uint16_t& each : data_.x) {
      each = element_from_float(DType::f16, static_cast<float>(sign()));
    }
    args_.struct_bytes = sizeof(args_);
    args_.m = 1;
    args_.weights = public_args(device_, data_.weights);
    args_.output_scales = device_.input(data_.weights.output_scales);
    workspace_ = make_workspace(runtime_, op_, 1);
    for (DeviceBuffer& each : vectors_) each = DeviceBuffer(backend_, 2 * data_.x.size());
    poison();
    launch_all(nullptr, true);
    expected_ = result();
  }
  static Json square_gemv() {
    return {{"op", "gemv"},
            {"weights", "aqlm-2x8"},
            {"shape", {{"m", 1}, {"out_features", 2048}, {"in_features", 2048}}}};
  }
  void launch_all(void* stream, bool waiting) {
    for (std::size_t i = 0; i < 40; ++i) {
      args_.x = vectors_[i % 2].data();
      args_.y = vectors_[(i + 1) % 2].data();
      ASSERT_EQ(vqgen_linear_launch(op_, &args_, workspace_.data(), workspace_.bytes(), stream),
                VQGEN_OK)
          << vqgen_last_error();
      if (waiting) {
        ASSERT_EQ(vqgen_synchronize(runtime_, stream), VQGEN_OK);
      }
    }
  }
  void poison() {
    for (DeviceBuffer& each : vectors_) {
      backend_.upload(each.data(), std::as_bytes(std::span(data_.x)));
    }
  }
  void expect_right() { EXPECT_EQ(result(), expected_); }

 private:
  std::vector<std::uint16_t> result() {
    std::vector<std::uint16_t> y(data_.x.size());
    backend_.download(std::as_writable_bytes(std::span(y)), vectors_[0].data());
    return y;
  }

  vqgen_runtime* runtime_;
  vqgen_op* op_;
  Backend& backend_;
  LinearData data_;
  DeviceData device_;
  DeviceBuffer vectors_[2];
  DeviceBuffer workspace_;
  vqgen_linear_args args_{};
  std::vector<std::uint16_t> expected_;
};

TEST_F(OnDevice, EachLaunchSeesWhatTheLastStored) {
  vqgen_op* op = prepared(runtime_, ChainTrial::square_gemv());
  {
    ChainTrial trial(runtime_, op);
    trial.poison();
    trial.launch_all(stream_, false);
    ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
    trial.expect_right();
    constexpr int kThreadMode = 1;
    using Begin = int (*)(void*, int);
    ASSERT_EQ(driver_function<Begin>("cuStreamBeginCapture_v2")(stream_, kThreadMode), 0);
    trial.launch_all(stream_, false);
    void* graph = nullptr;
    ASSERT_EQ(driver_function<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
    expect_replays(graph, trial, 5);
  }
  vqgen_op_release(op);
}

// Loading, allocating and freeing do not break another thread's capture, whatever its mode.
TEST_F(OnDevice, AnotherThreadPreparesWhileOneCaptures) {
  vqgen_op* op = prepared(runtime_, small_gemv());
  LinearTrial trial(runtime_, *as_linear(read_config(small_gemv(), "test").problem), 3);
  ASSERT_EQ(trial.launch(op, stream_), VQGEN_OK) << vqgen_last_error();
  ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
  trial.poison();
  constexpr int kGlobalMode = 0;
  ASSERT_EQ(driver_function<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, kGlobalMode),
            0);
  const vqgen_status launched = trial.relaunch(op, stream_);
  std::jthread([&] {
    vqgen_op_release(prepared(runtime_, small_attention()));
    void* memory = nullptr;
    EXPECT_EQ(vqgen_alloc(runtime_, 1 << 20, &memory), VQGEN_OK) << vqgen_last_error();
    vqgen_free(runtime_, memory);
    vqgen_runtime* passing = nullptr;  // unloads what it loaded
    vqgen_options options;
    vqgen_options_init(&options);
    options.cache_dir = "";
    ASSERT_EQ(vqgen_runtime_create(&options, &passing), VQGEN_OK) << vqgen_last_error();
    vqgen_op_release(prepared(passing, small_gemv()));
    vqgen_runtime_destroy(passing);
  }).join();
  void* graph = nullptr;
  ASSERT_EQ(driver_function<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
  EXPECT_EQ(launched, VQGEN_OK);
  expect_replays(graph, trial, 1);
  vqgen_op_release(op);
}

// Kernels are loaded into the current context, and run on its default stream.
TEST_F(OnDevice, TheCurrentContextIsTaken) {
  vqgen_options options;
  vqgen_options_init(&options);
  options.cache_dir = "";
  options.device = VQGEN_CURRENT_CONTEXT;
  vqgen_runtime* current = nullptr;
  ASSERT_EQ(vqgen_runtime_create(&options, &current), VQGEN_OK) << vqgen_last_error();
  vqgen_op* op = prepared(current, small_gemv());
  {  // its arrays must not outlive the runtime
    LinearTrial trial(current, *as_linear(read_config(small_gemv(), "test").problem), 3);
    ASSERT_EQ(trial.launch(op), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(current, nullptr), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
  vqgen_op_release(op);
  vqgen_runtime_destroy(current);
  std::jthread([&] {  // where no context is current
    EXPECT_EQ(vqgen_runtime_create(&options, &current), VQGEN_DEVICE);
  })
      .join();
}

}  // namespace
}  // namespace vqgen::library::test

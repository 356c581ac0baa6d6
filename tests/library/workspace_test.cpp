// The contents of a workspace do not matter: plans whose last block merges have counters in the
// library, on the host backend and on a GPU in streams and graphs.
#include <map>
#include <thread>

#include "runtime/backend/host/host_backend.h"
#include "tests/library/host_runtime.h"
#include "tests/library/on_device.h"

namespace vqgen::library::test {
namespace {

struct Counting {
  const char* name;
  Json config;
};

Json counting_attention(const char* plan) {
  return edited(attention_json(), {{"/shape/query_heads", "4"},
                                   {"/shape/head_dim", "64"},
                                   {"/shape/tokens", "300"},
                                   {"/plan", plan}});
}

Json counting_product(int rows, const char* plan) {
  return edited(small_gemv(), {{"/op", rows == 1 ? R"("gemv")" : R"("gemm")"},
                               {"/shape/m", std::to_string(rows)},
                               {"/shape/out_features", "128"},
                               {"/plan", plan}});
}

// Configs of every op with counters.
std::vector<Counting> all_counting() {
  const Json experts = edited(small_gemv(), {{"/shape/experts", "3"},
                                             {"/shape/total_rows", "9"},
                                             {"/plan", R"({"dataflow": "simt", "splits": 2,
                                          "combine": "last_block"})"}});
  return {
      {"simt", counting_attention(R"({"dataflow": "simt", "splits": 3, "combine": "last_block"})")},
      {"mma", counting_attention(R"({"dataflow": "mma", "splits": 3, "combine": "last_block"})")},
      {"length", counting_attention(R"({"dataflow": "mma", "splits": 5, "schedule": "balanced",
                              "combine": "last_block"})")},
      {"gemv", counting_product(1, R"({"dataflow": "simt", "splits": 2,
                                       "combine": "last_block"})")},
      {"gemm", counting_product(8, R"({"dataflow": "mma", "splits": 3,
                                       "combine": "last_block"})")},
      {"experts", experts},
  };
}

class AnyTrial {
 public:
  AnyTrial(vqgen_runtime* runtime, const Json& config)
      : runtime_(runtime), op_(prepared(runtime, config), &vqgen_op_release) {
    const Problem problem = read_config(config, "test").problem;
    if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
      heads_ = std::make_unique<AttentionTrial>(runtime, *attention, attention->shape.tokens);
    } else {
      const Linear& linear = *as_linear(problem);
      product_ = std::make_unique<LinearTrial>(
          runtime, linear,
          linear.shape.total_rows > 0 ? linear.shape.total_rows : linear.shape.rows);
    }
  }
  std::size_t bytes() const { return vqgen_op_workspace_bytes(op_.get()); }
  vqgen_status launch(void* workspace, void* stream = nullptr) {
    return heads_ ? heads_->launch_in(workspace, bytes(), op_.get(), stream)
                  : product_->launch_in(workspace, bytes(), op_.get(), stream);
  }
  void poison() { heads_ ? heads_->poison() : product_->poison(); }
  void expect_right() const { heads_ ? heads_->expect_right() : product_->expect_right(); }
  void expect_right_in(void* workspace, void* stream = nullptr) {
    poison();
    ASSERT_EQ(launch(workspace, stream), VQGEN_OK) << vqgen_last_error();
    ASSERT_EQ(vqgen_synchronize(runtime_, stream), VQGEN_OK) << vqgen_last_error();
    expect_right();
  }
  // A launch that fails at the end of its truncated codes, after some blocks have finished.
  void abort_in(void* workspace) {
    vqgen_quantized& codes = heads_ ? heads_->args().values : product_->args().weights;
    const Json said = parse_json(vqgen_op_description(op_.get()), "description");
    std::size_t bytes = 4;
    for (const Json& each : said["arguments"]) {
      if (each["name"] != (heads_ ? "values.codes" : "weights.codes")) continue;
      for (const Json& extent : each["shape"]) bytes *= extent.get<std::size_t>();
    }
    ASSERT_GT(bytes, 4u);
    const DeviceBuffer cut(runtime_->registry->backend(), bytes - bytes / 16);
    const void* const whole = codes.codes;
    codes.codes = cut.data();
    EXPECT_EQ(launch(workspace), VQGEN_DEVICE);
    codes.codes = whole;
  }

 private:
  vqgen_runtime* runtime_;
  std::unique_ptr<vqgen_op, decltype(&vqgen_op_release)> op_;
  std::unique_ptr<AttentionTrial> heads_;
  std::unique_ptr<LinearTrial> product_;
};

DeviceBuffer filled(vqgen_runtime* runtime, std::size_t bytes, int fill) {
  Backend& backend = runtime->registry->backend();
  DeviceBuffer memory(backend, bytes);
  backend.upload(memory.data(), std::vector<std::byte>(bytes, static_cast<std::byte>(fill)));
  return memory;
}

constexpr int kFills[] = {0x00, 0x11, 0xff};

void expect_right_whatever_it_holds(vqgen_runtime* runtime, void* stream) {
  for (const Counting& each : all_counting()) {
    AnyTrial trial(runtime, each.config);
    for (const int fill : kFills) {
      SCOPED_TRACE(std::string(each.name) + " " + std::to_string(fill));
      const DeviceBuffer memory = filled(runtime, trial.bytes(), fill);
      for (int again = 0; again < 3; ++again) trial.expect_right_in(memory.data(), stream);
      // Other launches, or the caller, may have overwritten the workspace since.
      const std::vector<std::byte> other(trial.bytes(), std::byte{0x5a});
      runtime->registry->backend().upload(memory.data(), other);
      trial.expect_right_in(memory.data(), stream);
    }
  }
}

void expect_right_in_turns(vqgen_runtime* runtime, void* stream) {
  std::vector<std::unique_ptr<AnyTrial>> trials;
  std::size_t most = 0;
  for (const Counting& each : all_counting()) {
    trials.push_back(std::make_unique<AnyTrial>(runtime, each.config));
    most = std::max(most, trials.back()->bytes());
  }
  const DeviceBuffer memory = filled(runtime, most, 0x11);
  for (int again = 0; again < 2; ++again) {
    for (const auto& each : trials) each->expect_right_in(memory.data(), stream);
  }
}

TEST(Workspace, MayHoldAnything) { expect_right_whatever_it_holds(host(), nullptr); }

TEST(Workspace, MayHoldWhatAnotherPlanLeft) { expect_right_in_turns(host(), nullptr); }

TEST(Workspace, OfALaunchThatWasStoppedIsAsGoodAsAny) {
  for (const Counting& each : all_counting()) {
    SCOPED_TRACE(each.name);
    AnyTrial trial(host(), each.config);
    const DeviceBuffer memory = filled(host(), trial.bytes(), 0);
    trial.expect_right_in(memory.data());
    trial.abort_in(memory.data());
    for (int again = 0; again < 2; ++again) trial.expect_right_in(memory.data());
  }
}

TEST(Workspace, OfEachThreadIsItsOwn) {
  for (const Counting& each : all_counting()) {
    SCOPED_TRACE(each.name);
    const auto run = [&](int fill) {
      AnyTrial trial(host(), each.config);
      const DeviceBuffer memory = filled(host(), trial.bytes(), fill);
      for (int again = 0; again < 5; ++again) trial.expect_right_in(memory.data());
    };
    std::jthread other(run, 0x11);
    run(0xff);
  }
}

// More workspaces than the library has room for at once, with counters of two sizes.
TEST(Workspace, HasCountersOfItsOwnByItsAddress) {
  LaunchCounters counters(make_host_backend({}));
  counters.reserve();
  std::map<std::byte*, std::size_t> held;
  std::vector<std::byte> addresses(100);
  for (const std::size_t bytes : {4u, 65536u, 600u}) {
    for (const std::byte& address : addresses) {
      auto* const given = static_cast<std::byte*>(counters.of(&address, bytes));
      EXPECT_EQ(given, counters.of(&address, bytes));
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(given[i], std::byte{0});
      std::size_t& most = held[given];
      most = std::max(most, bytes);
    }
  }
  EXPECT_EQ(held.size(), 200u);  // the larger serve the smaller
  for (auto next = held.begin(), before = next++; next != held.end(); before = next++) {
    EXPECT_GE(next->first, before->first + before->second);
  }
}

TEST_F(OnDevice, WorkspacesMayHoldAnything) {
  expect_right_whatever_it_holds(runtime_, stream_);
  expect_right_in_turns(runtime_, stream_);
}

// Graphs of two workspaces each, replayed on two streams at once.
TEST_F(OnDevice, WorkspacesOfGraphsMayHoldAnything) {
  void* other = nullptr;
  ASSERT_EQ(driver_function<int (*)(void**, unsigned)>("cuStreamCreate")(&other, 1), 0);
  for (const Counting& each : all_counting()) {
    SCOPED_TRACE(each.name);
    AnyTrial here(runtime_, each.config), there(runtime_, each.config);
    const DeviceBuffer of_here = filled(runtime_, here.bytes(), 0x11);
    const DeviceBuffer of_there = filled(runtime_, there.bytes(), 0xff);
    void* const graph_here = captured([&] {
      for (int i = 0; i < 3; ++i) ASSERT_EQ(here.launch(of_here.data(), stream_), VQGEN_OK);
    });
    void* const graph_there = captured([&] {
      for (int i = 0; i < 3; ++i) ASSERT_EQ(there.launch(of_there.data(), stream_), VQGEN_OK);
    });
    for (int replay = 0; replay < 10; ++replay) {
      here.poison();
      there.poison();
      for (int i = 0; i < 20; ++i) {
        replay_on(graph_here, stream_);
        replay_on(graph_there, other);
      }
      ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK) << vqgen_last_error();
      ASSERT_EQ(vqgen_synchronize(runtime_, other), VQGEN_OK) << vqgen_last_error();
      here.expect_right();
      there.expect_right();
    }
    destroy(graph_here);
    destroy(graph_there);
  }
  driver_function<int (*)(void*)>("cuStreamDestroy_v2")(other);
}

// Each launch is the first with its workspace; there are more than the library has room for
// beforehand.
TEST_F(OnDevice, RoomForCountersIsMadeDuringACapture) {
  AnyTrial trial(runtime_, all_counting()[3].config);
  constexpr std::size_t kWorkspaces = 5000;
  const DeviceBuffer memory = filled(runtime_, trial.bytes() + 16 * kWorkspaces, 0x11);
  void* const graph = captured([&] {
    for (std::size_t i = 0; i < kWorkspaces; ++i) {
      ASSERT_EQ(trial.launch(static_cast<std::byte*>(memory.data()) + 16 * i, stream_), VQGEN_OK)
          << vqgen_last_error();
    }
  });
  expect_replays_of(graph, trial, 2);
}

}  // namespace
}  // namespace vqgen::library::test

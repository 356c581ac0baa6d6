// A GPU's runtime, with a stream and graphs of its caller. The driver is opened by hand, as a
// program without its headers would.
#pragma once

#include <dlfcn.h>

#include "tests/library/trials.h"

namespace vqgen::library::test {

template <class Function>
Function driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(driver == nullptr ? nullptr : dlsym(driver, name));
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    vqgen_options options;
    vqgen_options_init(&options);
    options.cache_dir = "";
    if (vqgen_runtime_create(&options, &runtime_) != VQGEN_OK) GTEST_SKIP() << vqgen_last_error();
    ASSERT_EQ(vqgen_make_current(runtime_), VQGEN_OK) << vqgen_last_error();
    constexpr unsigned kNonBlocking = 1;
    ASSERT_EQ(driver_function<int (*)(void**, unsigned)>("cuStreamCreate")(&stream_, kNonBlocking),
              0);
  }
  void TearDown() override {
    if (stream_ != nullptr) driver_function<int (*)(void*)>("cuStreamDestroy_v2")(stream_);
    vqgen_runtime_destroy(runtime_);
  }
  // An executable graph of what `launch` enqueues while the stream is captured.
  template <class Launch>
  void* captured(const Launch& launch) {
    constexpr int kGlobalMode = 0;  // the strictest: nothing unsafe on any thread
    EXPECT_EQ(driver_function<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, kGlobalMode),
              0);
    launch();
    void* graph = nullptr;
    EXPECT_EQ(driver_function<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
    return executable(graph);
  }
  // Makes an executable of `graph`, which it destroys.
  static void* executable(void* graph) {
    void* made = nullptr;
    using Instantiate = int (*)(void**, void*, unsigned long long);
    EXPECT_EQ(driver_function<Instantiate>("cuGraphInstantiateWithFlags")(&made, graph, 0), 0);
    driver_function<int (*)(void*)>("cuGraphDestroy")(graph);
    return made;
  }
  static void replay_on(void* executable, void* stream) {
    ASSERT_EQ(driver_function<int (*)(void*, void*)>("cuGraphLaunch")(executable, stream), 0);
  }
  static void destroy(void* executable) {
    driver_function<int (*)(void*)>("cuGraphExecDestroy")(executable);
  }
  // Expects the right result from each replay of `graph`, which it destroys.
  template <class Trial>
  void expect_replays(void* graph, Trial& trial, int replays) {
    expect_replays_of(executable(graph), trial, replays);
  }
  template <class Trial>
  void expect_replays_of(void* made, Trial& trial, int replays) {
    for (int replay = 0; replay < replays; ++replay) {
      trial.poison();
      replay_on(made, stream_);
      ASSERT_EQ(vqgen_synchronize(runtime_, stream_), VQGEN_OK);
      trial.expect_right();
    }
    destroy(made);
  }
  // Captures `launch` and expects the right result from each replay.
  template <class Trial, class Launch>
  void expect_captured_replays(Trial& trial, int replays, const Launch& launch) {
    trial.poison();
    void* const made = captured([&] { EXPECT_EQ(launch(), VQGEN_OK) << vqgen_last_error(); });
    expect_replays_of(made, trial, replays);
  }
  vqgen_runtime* runtime_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace vqgen::library::test

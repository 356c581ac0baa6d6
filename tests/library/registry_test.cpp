// However many threads ask, an op is made once and found again without work; errors reach all
// waiting threads.
#include "tests/library/fake_backend.h"

#include <barrier>

#include "core/files/files.h"

namespace vqgen::library::test {
namespace {

// Runs `act(i)` in 16 threads at once.
template <class Act>
void from_threads(const Act& act) {
  constexpr int kThreads = 16;
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      act(i);
    });
  }
}

TEST(Registry, ManyThreadsOnOneColdConfigCompileItOnce) {
  FakeRuntime fake;
  fake.backend->compile_time = std::chrono::milliseconds(50);
  std::atomic<int> compiled{0};
  std::atomic<const Record*> first{nullptr};
  from_threads([&](int) {
    const Outcome outcome = fake.prepare(gemv_json());
    ASSERT_NE(outcome.record, nullptr);
    if (outcome.provenance == Provenance::compiled) ++compiled;
    const Record* expected = nullptr;
    if (!first.compare_exchange_strong(expected, outcome.record.get())) {
      EXPECT_EQ(expected, outcome.record.get());
    }
  });
  EXPECT_EQ(fake.backend->compilations, 1);
  EXPECT_EQ(fake.backend->loads, 1);
  EXPECT_EQ(compiled, 1);
}

TEST(Registry, ThreadsOnDifferentConfigsLaunchingAllTheWhile) {
  FakeRuntime fake({.max_buckets = 3, .threads = 2});
  from_threads([&](int i) {
    Json config = gemv_json();
    config["shape"]["out_features"] = 512 + 64 * (i % 4);
    for (int turn = 0; turn < 3; ++turn) {
      const Outcome outcome = fake.prepare(config);
      ASSERT_NE(outcome.record, nullptr);
      for (const Bucket& each : outcome.record->current().buckets) {
        each.kernel->enqueue(0, {}, nullptr);
      }
    }
  });
  EXPECT_EQ(fake.backend->compilations, 4 * 2);  // rows 1 and 2
}

// One runtime per device, with one cache: each finds what the other compiled, and launches its own
// kernels.
TEST(Registry, TwoDevicesFromManyThreads) {
  const TempFolder folder;
  FakeRuntime devices[]{FakeRuntime({.max_buckets = 2, .threads = 2}, folder.path()),
                        FakeRuntime({.max_buckets = 2, .threads = 2}, folder.path())};
  for (FakeRuntime& each : devices) each.backend->compile_time = std::chrono::milliseconds(20);
  from_threads([&](int i) {
    FakeRuntime& device = devices[i % 2];
    Json config = gemv_json();
    config["shape"]["out_features"] = 512 + 64 * (i / 2 % 2);
    const Outcome outcome = device.prepare(config);
    ASSERT_NE(outcome.record, nullptr);
    for (const Bucket& each : outcome.record->current().buckets) {
      EXPECT_EQ(&dynamic_cast<const FakeKernel&>(*each.kernel).backend, device.backend.get());
      each.kernel->enqueue(0, {}, nullptr);
    }
  });
  EXPECT_EQ(devices[0].backend->compilations + devices[1].backend->compilations, 2 * 2);
  for (const FakeRuntime& each : devices) {
    EXPECT_EQ(each.backend->loads, 2 * 2);  // rows 1 and 2 of two configs
    EXPECT_EQ(each.backend->enqueued, 8 * 2);
  }
}

TEST(Registry, ASecondPrepareAsksNobody) {
  FakeRuntime fake;
  const Outcome first = fake.prepare(gemv_json());
  EXPECT_EQ(first.provenance, Provenance::compiled);
  const Outcome again = fake.prepare(gemv_json());
  EXPECT_EQ(again.provenance, Provenance::memory);
  EXPECT_EQ(again.record, first.record);
  // Equivalent texts: with blanks, and with a default spelled out.
  Json spelt = gemv_json();
  spelt["dtype"] = "f16";
  const Outcome other = fake.registry().prepare(spelt.dump(4), "elsewhere");
  EXPECT_EQ(other.provenance, Provenance::memory);
  EXPECT_EQ(other.record, first.record);
  EXPECT_EQ(fake.backend->compilations, 1);
}

TEST(Registry, KeysDifferInAllThatMakesAnotherKernelAndInNothingElse) {
  const auto key = [](const Json& json, const GpuSpec& gpu, const char* backend) {
    return spec_key(read_config(json, "test"), gpu, backend);
  };
  const GpuSpec gpu = find_gpu("h200");
  const std::string own = key(gemv_json(), gpu, "cuda");
  EXPECT_EQ(own, key(edited(gemv_json(), {{"/dtype", "\"f16\""}}), gpu, "cuda"));
  const std::vector<Edit> edits{{"/dtype", "\"bf16\""},           {"/shape/m", "1"},
                                {"/shape/out_features", "520"},   {"/weights/index_bits", "7"},
                                {"/access_counts", "\"h.json\""}, {"/plan", R"({"splits": 2})"}};
  for (const Edit& edit : edits) {
    EXPECT_NE(own, key(edited(gemv_json(), {edit}), gpu, "cuda")) << edit.pointer;
  }
  EXPECT_NE(own, key(gemv_json(), find_gpu("a100"), "cuda"));
  EXPECT_NE(own, key(gemv_json(), gpu, "host"));
}

TEST(Registry, AFailureReachesAllWhoWaitAndIsTriedAgain) {
  FakeRuntime fake;
  fake.backend->compile_time = std::chrono::milliseconds(50);
  std::atomic<bool> broken{true};
  fake.backend->on_compile = [&](const KernelSource&) {
    if (broken) throw Error(ErrorKind::device, "the compiler is broken");
  };
  std::atomic<int> failures{0};
  from_threads([&](int) {
    try {
      fake.prepare(gemv_json());
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the compiler is broken");
      ++failures;
    }
  });
  EXPECT_EQ(failures, 16);
  broken = false;
  EXPECT_EQ(fake.prepare(gemv_json()).provenance, Provenance::compiled);
}

TEST(Registry, BadConfigsAreErrorsAndLeaveNothingBehind) {
  FakeRuntime fake;
  EXPECT_NE(message_of([&] { fake.registry().prepare("{", "config"); }), "");
  EXPECT_NE(message_of([&] { fake.prepare(edited(gemv_json(), {{"/shape/m", "0"}})); }), "");
  const Json impossible = edited(gemv_json(), {{"/plan", R"({"threads": 48})"}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(message_of([&] { fake.prepare(impossible); }, ErrorKind::infeasible), "");
  }
  EXPECT_EQ(fake.backend->compilations, 0);
}

TEST(Registry, AnOpOutlivesItsRuntimeAndThenUnloads) {
  std::shared_ptr<FakeBackend> backend;
  Outcome outcome;
  {
    FakeRuntime fake;
    backend = fake.backend;
    outcome = fake.prepare(gemv_json());
  }
  EXPECT_EQ(backend->loaded, 1);
  outcome.record->buckets.front().kernel->enqueue(0, {}, nullptr);
  outcome.record.reset();
  EXPECT_EQ(backend->loaded, 0);
}

// A thread that waits for its stream does not delay threads that load.
TEST(Registry, OpsAreLoadedWhileAnotherThreadWaitsForItsStream) {
  FakeRuntime fake;
  std::promise<void> waiting;
  std::promise<void> loaded;
  std::future<void> seen = loaded.get_future();
  fake.backend->on_wait = [&] {
    waiting.set_value();
    EXPECT_EQ(seen.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  };
  const std::jthread other([&] { EXPECT_EQ(vqgen_synchronize(&fake.runtime, nullptr), VQGEN_OK); });
  waiting.get_future().wait();
  fake.prepare(gemv_json());
  loaded.set_value();
}

TEST(Registry, AFileIsItsText) {
  const TempFolder folder;
  const std::string path = (folder.path() / "c.json").string();
  publish_text(path, gemv_json().dump());
  FakeRuntime fake;
  const Outcome first = fake.registry().prepare_file(path, nullptr);
  EXPECT_EQ(fake.registry().prepare_file(path, nullptr).record, first.record);
  publish_text(path, edited(gemv_json(), {{"/shape/m", "1"}}).dump());
  EXPECT_NE(fake.registry().prepare_file(path, nullptr).record, first.record);
}

}  // namespace
}  // namespace vqgen::library::test

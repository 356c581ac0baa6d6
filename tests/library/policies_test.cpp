// What happens on a miss: compiled, refused, or served by the plain plan until the wanted one is
// ready; freeze, prefetch, capture.
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

const int kStream = 0;  // stands for a stream of the caller's
void* some_stream() { return const_cast<int*>(&kStream); }

std::string dataflow_of(const Record& record) {
  return std::string(dataflow_name(record.buckets.back().plan));
}

TEST(Policies, FailTakesWhatTheCacheHasAndCompilesNothing) {
  const TempFolder folder;
  FakeRuntime strict({.miss = MissPolicy::fail, .max_buckets = 2}, folder.path());
  EXPECT_EQ(strict.prepare(gemv_json()).refusal, Refusal::miss);
  EXPECT_EQ(strict.prepare(gemv_json()).record, nullptr);
  EXPECT_EQ(strict.backend->compilations, 0);
  EXPECT_EQ(strict.backend->loads, 0);
  FakeRuntime lenient({.max_buckets = 2}, folder.path());
  EXPECT_EQ(lenient.prepare(gemv_json()).provenance, Provenance::compiled);
  EXPECT_EQ(strict.prepare(gemv_json()).provenance, Provenance::disk);
  EXPECT_EQ(strict.prepare(gemv_json()).provenance, Provenance::memory);
  EXPECT_EQ(strict.backend->compilations, 0);
}

TEST(Policies, FailDoesNotHideOtherFaults) {
  FakeRuntime strict({.miss = MissPolicy::fail, .max_buckets = 1});
  const Json impossible = edited(gemv_json(), {{"/plan", R"({"threads": 48})"}});
  EXPECT_NE(message_of([&] { strict.prepare(impossible); }, ErrorKind::infeasible), "");
}

TEST(Policies, FallbackServesThePlainPlanUntilTheWantedOneIsThere) {
  FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 1});
  std::atomic<bool> go{false};
  fake.backend->on_compile = [&](const KernelSource& source) {
    if (source.entries.front().name.find("_simt_") != std::string::npos) return;
    while (!go) std::this_thread::yield();
  };
  // The wanted plan requires a wider alignment of the codes than the plain one.
  const Json config = edited(gemv_json(), {{"/plan", R"({"code_words": 4})"}});
  const Outcome outcome = fake.prepare(config);
  ASSERT_NE(outcome.record, nullptr);
  EXPECT_EQ(outcome.provenance, Provenance::baseline);
  EXPECT_EQ(dataflow_of(outcome.record->current()), "simt");
  EXPECT_EQ(fake.prepare(config).provenance, Provenance::baseline);
  go = true;
  while (&outcome.record->current() == outcome.record.get()) std::this_thread::yield();
  const Record& now = outcome.record->current();
  EXPECT_EQ(dataflow_of(now), "mma");
  EXPECT_EQ(fake.prepare(config).provenance, Provenance::memory);
  // A workspace made for the baseline must be large enough for its replacement.
  EXPECT_GE(outcome.record->workspace_bytes, now.workspace_bytes);
  ASSERT_EQ(now.buckets.back().demands.codes_mask, 15u);
  const Demands& before = outcome.record->buckets.back().demands;
  EXPECT_EQ(before.codes_mask, 15u);
  EXPECT_EQ(before.elements_mask, now.buckets.back().demands.elements_mask);
}

TEST(Policies, FallbackStaysWhereTheWantedPlanDoesNotCompile) {
  std::atomic<int> attempts{0};
  FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 1});
  fake.backend->on_compile = [&](const KernelSource& source) {
    if (source.entries.front().name.find("_simt_") != std::string::npos) return;
    ++attempts;
    throw Error(ErrorKind::device, "does not compile");
  };
  const Outcome outcome = fake.prepare(gemv_json());
  while (outcome.record->failed == nullptr) std::this_thread::yield();
  EXPECT_EQ(attempts, 1);
  const Json told = parse_json(outcome.record->told(), "description");
  EXPECT_EQ(told["failed"], "does not compile");
  EXPECT_EQ(told["buckets"].size(), 1u);
  EXPECT_EQ(&outcome.record->current(), outcome.record.get());
  EXPECT_EQ(fake.prepare(gemv_json()).provenance, Provenance::baseline);
}

TEST(Policies, LaunchesGoOnWhileTheWantedPlanTakesOver) {
  alignas(256) static char memory[256];
  FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 2});
  std::atomic<bool> go{false};
  fake.backend->on_compile = [&](const KernelSource& source) {
    if (source.entries.front().name.find("_simt_") != std::string::npos) return;
    while (!go) std::this_thread::yield();
  };
  vqgen_op* op = nullptr;
  const std::string config = gemv_json().dump();
  ASSERT_EQ(vqgen_prepare(&fake.runtime, config.c_str(), nullptr, &op), VQGEN_OK);
  EXPECT_EQ(vqgen_op_provenance(op), VQGEN_BASELINE);
  EXPECT_EQ(vqgen_op_bucket(op, 1), 1);  // as the wanted plans have it
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        vqgen_linear_args args{};
        args.struct_bytes = sizeof(args);
        args.m = 1;
        args.x = args.y = memory;
        args.weights.codes = args.weights.codebooks = memory;
        const std::size_t bytes = vqgen_op_workspace_bytes_for(op, 1);
        for (int after = 0; after < 10; after += op->record->now != nullptr) {
          ASSERT_EQ(vqgen_linear_launch(op, &args, memory, bytes, nullptr), VQGEN_OK)
              << vqgen_last_error();
        }
      });
    }
    go = true;
  }
  EXPECT_EQ(vqgen_op_bucket(op, 1), 1);
  vqgen_op_release(op);
}

// Arguments that fit the wanted plans must fit the baseline.
TEST(Policies, TheBaselineHasTheSizesOfTheWantedPlans) {
  Json gemm =
      edited(gemv_json(), {{"/shape/m", "20"}, {"/plan", R"({"splits": 2, "combine": "kernel"})"}});
  gemm["op"] = "gemm";
  FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 3});
  std::atomic<bool> go{false};
  fake.backend->on_compile = [&](const KernelSource& source) {
    while (!go && source.entries.front().name.find("_simt_") == std::string::npos) {
      std::this_thread::yield();
    }
  };
  const Outcome outcome = fake.prepare(gemm);
  const Record& before = outcome.record->current();
  ASSERT_EQ(before.buckets.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(before.buckets[i].most, (std::array{8, 16, 20}[i]));
  }
  // A workspace that is enough for the baseline is enough for its replacement.
  const std::vector<std::size_t> asked{before.buckets[0].workspace_bytes,
                                       before.buckets[1].workspace_bytes,
                                       before.buckets[2].workspace_bytes};
  const Json told = parse_json(before.description, "description");
  go = true;
  while (&outcome.record->current() == outcome.record.get()) std::this_thread::yield();
  const Record& now = outcome.record->current();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GT(now.buckets[i].workspace_bytes, before.buckets[i].own_bytes);
    EXPECT_GE(asked[i], now.buckets[i].workspace_bytes);
    EXPECT_EQ(told["buckets"][i]["workspace_bytes"], asked[i]);
  }
}

TEST(Policies, ARuntimeWaitsForTheBackgroundAndItsOpsGoOn) {
  Outcome outcome;
  std::shared_ptr<FakeBackend> backend;
  {
    FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 1});
    backend = fake.backend;
    backend->compile_time = std::chrono::milliseconds(20);
    outcome = fake.prepare(gemv_json());
    fake.prepare(edited(gemv_json(), {{"/shape/m", "1"}}));
    while (backend->compilations < 3) std::this_thread::yield();  // two baselines, one under way
  }
  EXPECT_EQ(dataflow_of(outcome.record->current()), "mma");
  outcome.record->current().buckets.front().kernel->enqueue(0, {}, nullptr);
  outcome.record.reset();
  EXPECT_EQ(backend->loaded, 0);
}

TEST(Policies, ARuntimeThatIsDestroyedBeginsNoOtherBucket) {
  Outcome outcome;
  {
    FakeRuntime fake({.miss = MissPolicy::fallback, .max_buckets = 2});
    fake.backend->compile_time = std::chrono::milliseconds(100);
    outcome = fake.prepare(gemv_json());
    while (fake.backend->compilations < 3) std::this_thread::yield();  // the baseline's are two
  }
  EXPECT_EQ(static_cast<FakeBackend&>(*outcome.record->backend).compilations, 3);
  expect_words(outcome.record->told(), {"failed", "destroyed"});
}

TEST(Policies, FrozenMeansNoNewOpsAndNoneLost) {
  FakeRuntime fake;
  const std::string known = gemv_json().dump();
  const std::string unknown = attention_json().dump();
  vqgen_op* op = nullptr;
  ASSERT_EQ(vqgen_prepare(&fake.runtime, known.c_str(), nullptr, &op), VQGEN_OK);
  vqgen_op_release(op);
  vqgen_freeze(&fake.runtime);
  EXPECT_EQ(vqgen_prepare(&fake.runtime, unknown.c_str(), nullptr, &op), VQGEN_MISS);
  EXPECT_EQ(op, nullptr);
  expect_words(vqgen_last_error(), {"frozen"});
  ASSERT_EQ(vqgen_prepare(&fake.runtime, known.c_str(), nullptr, &op), VQGEN_OK);
  EXPECT_EQ(vqgen_op_provenance(op), VQGEN_FROM_MEMORY);
  vqgen_op_release(op);
}

TEST(Policies, NothingIsLoadedInACapture) {
  FakeRuntime fake;
  fake.backend->in_capture = true;
  const std::string config = gemv_json().dump();
  vqgen_op* op = nullptr;
  EXPECT_EQ(vqgen_prepare(&fake.runtime, config.c_str(), some_stream(), &op), VQGEN_CAPTURING);
  EXPECT_EQ(fake.backend->compilations, 0);
  EXPECT_EQ(fake.backend->loads, 0);
  fake.backend->in_capture = false;
  ASSERT_EQ(vqgen_prepare(&fake.runtime, config.c_str(), some_stream(), &op), VQGEN_OK);
  vqgen_op_release(op);
  fake.backend->in_capture = true;  // what is known is found there too
  ASSERT_EQ(vqgen_prepare(&fake.runtime, config.c_str(), some_stream(), &op), VQGEN_OK);
  vqgen_op_release(op);
}

TEST(Policies, PrefetchCompilesSeveralAtOnceAndNamesTheFirstThatFails) {
  FakeRuntime fake;
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  fake.backend->compile_time = std::chrono::milliseconds(50);
  fake.backend->on_compile = [&](const KernelSource&) {
    const int now = ++running;
    int before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    --running;
  };
  std::vector<std::string> texts;
  for (int i = 0; i < 6; ++i) {
    texts.push_back(
        edited(gemv_json(), {{"/shape/out_features", std::to_string(512 + 64 * i)}}).dump());
  }
  texts[4] = "{";
  std::vector<const char*> configs;
  for (const std::string& each : texts) configs.push_back(each.c_str());
  EXPECT_EQ(vqgen_prefetch(&fake.runtime, configs.data(), configs.size(), 3), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"config 4"});
  EXPECT_EQ(fake.backend->compilations, 5);
  EXPECT_GE(most, 2);
  EXPECT_LE(most, 3);
  vqgen_freeze(&fake.runtime);
  vqgen_op* op = nullptr;
  ASSERT_EQ(vqgen_prepare(&fake.runtime, configs[5], nullptr, &op), VQGEN_OK);
  vqgen_op_release(op);
  EXPECT_EQ(vqgen_prefetch(&fake.runtime, configs.data(), configs.size(), 0), VQGEN_BAD_INPUT);
}

}  // namespace
}  // namespace vqgen::library::test

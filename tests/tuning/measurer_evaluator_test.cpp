// Real candidates on the host backend: right ones are timed, and those that a seeded fault makes
// wrong are found, each by its effect; a worker gives the same results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include <vq/args/linear.h>

#include "core/problem/config.h"
#include "core/profiles.h"
#include "runtime/tuning/worker/worker.h"
#include "tests/core/support.h"
#include "tests/tuning/host_with.h"
#include "tests/tuning/measurer_evaluator.h"

namespace vqgen {
namespace {

using testing::HasSubstr;

// The host backend with an extra action at each launch.
class MeddlingBackend final : public test::HostWith {
 public:
  // Compiles each text once.
  Artifact compile(const KernelSource& source) const override {
    static std::map<std::string, Artifact> compiled;
    auto found = compiled.find(source.text);
    if (found == compiled.end()) {
      found = compiled.emplace(source.text, HostWith::compile(source)).first;
    }
    return found->second;
  }
  std::optional<int> resident_blocks(LoadedKernel&, const KernelSource&,
                                     std::size_t) const override {
    return 3;
  }
  void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
              std::span<const std::byte> args) override {
    if (!drops) HostWith::launch(kernel, source, entry, args);
    if (!after || entry + 1 < source.entries.size()) return;
    vq::LinearArgs linear{};
    std::memcpy(&linear, args.data(), sizeof(linear));
    after(linear);
  }
  std::vector<double> time_us(std::span<const Launch> launches, int replays, double) override {
    vq::LinearArgs linear{};
    std::memcpy(&linear, launches.front().args.data(), sizeof(linear));
    timed_on.push_back(linear.weights.codes);
    return std::vector<double>(static_cast<std::size_t>(replays), 8.0);
  }

  bool drops = false;
  std::vector<const vq::u32*> timed_on;  // codes of the launches timed
  std::function<void(const vq::LinearArgs&)> after;
};

constexpr int kOutputs = 24;

Problem tiny_problem() {
  return read_config(edited(gemv_json(), {{"/shape/m", "1"},
                                          {"/shape/out_features", std::to_string(kOutputs)},
                                          {"/shape/in_features", "128"},
                                          {"/weights/index_bits", "4"}}),
                     "tiny")
      .problem;
}

// A plan with one split, and one with two, which needs a workspace.
std::vector<Plan> two_plans() {
  LinearSimt plan;
  plan.threads = 64;
  plan.chunk_columns = 64;
  LinearSimt split = plan;
  split.splits = 2;
  return {plan, split};
}

// The cache is so small that calls need no copies.
GpuSpec small_gpu() {
  GpuSpec gpu = find_gpu("h200");
  gpu.l2_bytes = 64;
  return gpu;
}

Plan infeasible_plan() {
  LinearSimt plan;
  plan.threads = 33;
  return plan;
}

class Meddled : public testing::Test {
 protected:
  // The outcomes of both plans while the backend does `meddle`.
  std::vector<Measurement> screened() { return evaluator_.screen(plans_); }
  void expect_all_right() {
    backend_.drops = false;
    backend_.after = nullptr;
    for (const Measurement& m : screened()) EXPECT_EQ(m.outcome, Outcome::timed) << m.why;
  }
  void expect_wrong(const std::string& why) {
    for (const Measurement& m : screened()) {
      EXPECT_EQ(m.outcome, Outcome::wrong);
      EXPECT_THAT(m.why, HasSubstr(why));
    }
    expect_all_right();
  }

  MeddlingBackend backend_;
  std::vector<Plan> plans_ = two_plans();
  test::MeasurerEvaluator evaluator_{
      backend_, {.problem = tiny_problem(), .gpu = small_gpu(), .compilers = 1}};
};

TEST_F(Meddled, RightPlansAreTimed) {
  plans_.push_back(infeasible_plan());
  const std::vector<Measurement> results = screened();
  ASSERT_EQ(results.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    const Measurement& m = results[static_cast<std::size_t>(i)];
    EXPECT_EQ(m.outcome, Outcome::timed) << m.why;
    EXPECT_GT(m.rel_err, 0);
    EXPECT_LT(m.rel_err, 1e-3);
    EXPECT_GT(m.time_us, 0);
    EXPECT_EQ(m.blocks_per_sm, 3);
    EXPECT_EQ(m.plan, plans_[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(results[2].outcome, Outcome::infeasible);
  EXPECT_GT(evaluator_.spent_s(), 0);
}

TEST_F(Meddled, AWrongElementIsWrong) {
  backend_.after = [](const vq::LinearArgs& args) { args.y[7] ^= 0x4000; };
  expect_wrong("rel_err");
}

// The plan would pass on what the previous one left.
TEST_F(Meddled, AKernelThatDoesNothingIsWrong) {
  expect_all_right();
  backend_.drops = true;
  expect_wrong("rel_err inf");
}

TEST_F(Meddled, WritesBesideTheOutputAreWrong) {
  for (const int at : {-1, kOutputs, kOutputs + 2047, -2048}) {
    backend_.after = [at](const vq::LinearArgs& args) { args.y[at] = 0; };
    expect_wrong("wrote outside of its outputs: output number 0, outside of it");
  }
}

// A write of the poison's own bytes is found too.
TEST_F(Meddled, APoisonBesideTheOutputIsWrong) {
  backend_.after = [](const vq::LinearArgs& args) { args.y[kOutputs] = 0xffff; };
  expect_wrong("output number 0, outside");
}

TEST_F(Meddled, WritesToInputsAndBesideThemAreWrong) {
  backend_.after = [](const vq::LinearArgs& args) { const_cast<vq::u16*>(args.x)[3] ^= 1; };
  expect_wrong("input number 0");
  backend_.after = [](const vq::LinearArgs& args) {
    const_cast<vq::u32*>(args.weights.codes)[-1] = 0;
  };
  expect_wrong("input number 2, outside of it");
}

TEST_F(Meddled, WritesBesideTheWorkspaceAreWrong) {
  plans_.erase(plans_.begin());
  const std::size_t floats = std::size_t{2} * kOutputs;
  backend_.after = [floats](const vq::LinearArgs& args) { args.partials[floats] = 0; };
  expect_wrong("the workspace, outside of it");
  backend_.after = [](const vq::LinearArgs& args) { args.counters[-1] = 0; };
  expect_wrong("the workspace, outside of it");
  backend_.after = [](const vq::LinearArgs& args) { args.partials[-1] = 1; };
  expect_wrong("the counters of the workspace, which are not 0");
}

// The host goes on after a fault: the plan is out, the others are not.
TEST_F(Meddled, AFaultIsACrashOfItsPlan) {
  int launches = 0;
  backend_.after = [&](const vq::LinearArgs&) {
    if (++launches == 1) throw Error(ErrorKind::device, "thread 7 read outside");
  };
  const std::vector<Measurement> results = screened();
  EXPECT_EQ(results[0].outcome, Outcome::crashed);
  EXPECT_EQ(results[0].why, "thread 7 read outside");
  EXPECT_EQ(results[1].outcome, Outcome::timed);
}

TEST_F(Meddled, FinalsTimeEachPlanOnceARound) {
  const std::vector<FinalTimes> results = evaluator_.finals(plans_, 5);
  ASSERT_EQ(results.size(), 2u);
  for (const FinalTimes& each : results) {
    EXPECT_EQ(each.outcome, Outcome::timed) << each.why;
    EXPECT_EQ(each.us, std::vector<double>(5, 0.5));  // of 16 calls
  }
}

// Both plans of a round use the same data, and each batch uses data at other addresses.
TEST_F(Meddled, BatchesOfFinalsHaveDataOfTheirOwn) {
  constexpr int kRounds = 11;
  evaluator_.finals(plans_, kRounds);
  ASSERT_EQ(backend_.timed_on.size(), 2u * kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const auto at = [&](int r) { return backend_.timed_on[static_cast<std::size_t>(2 * r)]; };
    EXPECT_EQ(at(round), backend_.timed_on[static_cast<std::size_t>(2 * round + 1)]);
    if (round == 0) continue;
    EXPECT_EQ(at(round) == at(round - 1), batch_of(round, kRounds) == batch_of(round - 1, kRounds));
  }
  expect_all_right();  // with guards where they belong
}

// Outcomes and bits are equal on both sides of the pipe.
TEST(HostWorker, MeasuresAsThisProcessDoes) {
  std::vector<Plan> plans = two_plans();
  plans.push_back(infeasible_plan());
  const std::unique_ptr<Backend> host = make_host_backend();
  const WorkerSetup setup{.problem = tiny_problem(),
                          .gpu = small_gpu(),
                          .backend = "host",
                          .codes = "zipf:1.5",
                          .seed = 7,
                          .compilers = 1};
  test::MeasurerEvaluator here(*host, setup);
  WorkerEvaluator there(
      setup,
      {.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--serve-host"}});
  const std::vector<Measurement> own = here.screen(plans), other = there.screen(plans);
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].plan, other[i].plan);
    EXPECT_EQ(own[i].outcome, other[i].outcome) << own[i].why << other[i].why;
    EXPECT_EQ(own[i].why, other[i].why);
    EXPECT_EQ(own[i].rel_err, other[i].rel_err);
    EXPECT_EQ(own[i].shared_bytes, other[i].shared_bytes);
    EXPECT_EQ(own[i].time_us > 0, other[i].time_us > 0);
  }
  plans.pop_back();
  for (const FinalTimes& each : there.finals(plans, 3)) EXPECT_EQ(each.us.size(), 3u) << each.why;
  EXPECT_EQ(there.started(), 1);
}

}  // namespace
}  // namespace vqgen

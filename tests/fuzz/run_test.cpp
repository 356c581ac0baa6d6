// Runs random problems, by the chosen plans and by plans with random fields, on the host backend
// against the double reference. Each run draws and prints a new seed; VQGEN_FUZZ_SEED repeats one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/guard.h"
#include "tests/fuzz/seed.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {
namespace {

// The compiler takes most of the time, twice as much of it with sanitizers.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kRuns = 24;
#else
constexpr std::size_t kRuns = 36;
#endif
constexpr std::size_t kShards = 4;  // so that ctest runs them side by side

// The most codebook entries to compare new tokens with: the reference compares one by one.
void spare_the_reference(KvAppend& op) {
  if (std::max(op.keys.codes(), op.values.codes()) <= 1024) return;
  op.shape.batch = op.shape.kv_heads = op.shape.new_tokens = 1;
}
template <class Op>
void spare_the_reference(Op&) {}

// A case that check() accepts; a refused draw is followed by another.
SweepCase draw_run(std::uint64_t seed) {
  Draw draw(seed);
  for (;;) {
    Json drawn = draw_small_problem(draw);
    if (draw.one_in(2)) drawn["plan"] = draw_plan(draw, drawn);
    const GpuSpec gpu = find_gpu(draw.of(gpu_names()));
    const Chooser chooser = draw.of({Chooser::rules, Chooser::model});
    try {
      Config config = read_config(drawn, "config.json");
      std::visit([](auto& op) { spare_the_reference(op); }, config.problem);
      SweepCase made;
      made.problem = config.problem;
      made.plan = propose(config, gpu, {chooser});
      if (!check(made.plan, made.problem, gpu).ok) continue;
      made.name = gpu.name;
      made.input.seed = draw.bits();
      made.input.codes = draw.of({CodePattern::uniform, CodePattern::zipf, CodePattern::one_hot,
                                  CodePattern::all_equal, CodePattern::max_code});
      made.input.lengths = draw.of({LengthPattern::full, LengthPattern::ragged});
      made.input.counts = draw.of({LengthPattern::full, LengthPattern::ragged});
      made.input.fresh = draw.one_in(2);
      return made;
    } catch (const Error&) {
      continue;
    }
  }
}

// The case as the command line takes it.
std::string config_of(const SweepCase& drawn) {
  Json config = to_json(drawn.problem);
  config["plan"] = to_json(drawn.plan);
  return fmt::format("config.json\n{}\n", config.dump());
}

class FuzzRun : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
};

TEST_P(FuzzRun, KernelsAreRight) {
  const std::uint64_t seed = fuzz_seed();
  const auto drawn = [&](std::size_t number) {
    return draw_run(case_seed(seed, GetParam() + number * kShards));
  };
  const GuardedFailure failure = run_guarded(kRuns / kShards, [&](std::size_t number) {
    return failure_of(drawn(number), *sweep_backend(number), sweep_gpu());
  });
  EXPECT_EQ(failure.what, "") << repeat_line(seed) << config_of(drawn(failure.number));
}

INSTANTIATE_TEST_SUITE_P(Shard, FuzzRun, testing::Range(std::size_t{0}, kShards));

}  // namespace
}  // namespace vqgen::test

// Runs random problems and plans for random GPUs through choose, check and generate: each gives a
// kernel or a refusal of one line. Each run draws and prints a new seed; VQGEN_FUZZ_SEED repeats
// one.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>

#include "generator/generate.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/guard.h"
#include "tests/fuzz/seed.h"

namespace vqgen::test {
namespace {

constexpr std::size_t kPairs = 20000;
constexpr std::size_t kShards = 4;  // so that ctest runs them side by side
// One of so many pairs is also explained and placed, which takes longer than all else.
constexpr std::size_t kExplained = 16;

constexpr std::array kOps{AttentionDecode::kOp, Gemv::kOp,         Gemm::kOp,
                          KvAppend::kOp,        KvDequantize::kOp, AttentionMerge::kOp};
enum Ending : std::size_t { kBadInput, kInfeasible, kKernel, kEndings };

void require(bool fine, const std::string& what) {
  if (!fine) throw std::logic_error(what);
}

void require_refusal(const std::string& reason) {
  require(!reason.empty() && reason.find('\n') == std::string::npos,
          fmt::format("a refusal that is not one line: '{}'", reason));
}

// The shape is within a launch's limits.
void require_launchable(const KernelSource& source, const GpuSpec& gpu) {
  require(!source.text.empty() && !source.entries.empty(), "no kernel in the text");
  for (const KernelEntry& entry : source.entries) {
    require(source.text.find(entry.name) != std::string::npos, entry.name + " is not in the text");
    require(
        entry.grid.x >= 1 && entry.grid.x <= 2147483647u && entry.grid.y >= 1 &&
            entry.grid.y <= 65535 && entry.grid.z >= 1 && entry.grid.z <= 65535,
        fmt::format("{}: grid {} x {} x {}", entry.name, entry.grid.x, entry.grid.y, entry.grid.z));
    require(entry.threads >= 1 && entry.threads <= 1024, entry.name + ": threads");
    require(entry.shared_bytes >= 0 && entry.shared_bytes <= gpu.shared_bytes_per_block,
            entry.name + ": shared memory");
  }
}

Ending judged(const Config& config, const GpuSpec& gpu, Chooser chooser, bool explained) {
  const Plan plan = propose(config, gpu, {chooser});
  const Verdict verdict = check(plan, config.problem, gpu);
  if (!verdict.ok) {
    require_refusal(verdict.reason);
    return kInfeasible;
  }
  require_launchable(
      generate(config.problem, plan, gpu, Machine::cuda, explain(plan, config.problem, gpu)), gpu);
  require(call_shape(plan, config.problem).workspace_bytes >= 0, "a workspace of negative size");
  const std::optional<Cost> cost = CostModel(config.problem, gpu, {})(plan);
  require(!cost || (std::isfinite(cost->us) && cost->us > 0), "an expected time that is none");
  if (!explained) return kKernel;
  require(!report(plan, config.problem, gpu).empty(), "no report");
  for (const Strategy strategy : {Strategy::paper, Strategy::measured}) {
    const Placed placed =
        place(plan, config.problem, gpu, {}, {.strategy = strategy, .registers = 64});
    const Verdict again = check(placed.plan, config.problem, gpu);
    require(again.ok, "placed to be refused: " + again.reason);
  }
  return kKernel;
}

Ending ending_of(const FuzzCase& drawn, Chooser chooser, bool explained) {
  try {
    GpuSpec gpu;
    read_fields(JsonCursor(drawn.gpu, "gpu.json"), gpu);
    return judged(read_config(drawn.config, "config.json"), gpu, chooser, explained);
  } catch (const Error& error) {
    require_refusal(error.what());
    require(error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::infeasible,
            fmt::format("a refusal of another kind: {}", error.what()));
    return error.kind() == ErrorKind::bad_input ? kBadInput : kInfeasible;
  }
}

std::size_t op_of(const FuzzCase& drawn) {
  return static_cast<std::size_t>(std::find(kOps.begin(), kOps.end(), drawn.config["op"]) -
                                  kOps.begin());
}

class Fuzz : public testing::TestWithParam<std::size_t> {};

TEST_P(Fuzz, EachPairGivesAKernelOrALineOfRefusal) {
  const std::uint64_t seed = fuzz_seed();
  const auto drawn = [&](std::size_t number) {
    return draw_case(case_seed(seed, GetParam() + number * kShards));
  };
  std::size_t* const counts = shared_counts(kOps.size() * kEndings);
  const GuardedFailure failure = run_guarded(kPairs / kShards, [&](std::size_t number) {
    const FuzzCase pair = drawn(number);
    for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
      try {
        const bool explained = number % kExplained == 0;
        ++counts[op_of(pair) * kEndings + ending_of(pair, chooser, explained)];
      } catch (const std::exception& error) {
        return fmt::format("chooser {}: {}", enum_name(chooser), error.what());
      }
    }
    return std::string();
  });
  EXPECT_EQ(failure.what, "") << repeat_line(seed) << text_of(drawn(failure.number));
  for (std::size_t op = 0; op < kOps.size(); ++op) {
    const std::span of_op(counts + op * kEndings, kEndings);
    std::printf("%s: %zu kernels, %zu infeasible, %zu bad input\n", kOps[op], of_op[kKernel],
                of_op[kInfeasible], of_op[kBadInput]);
    // Refusals alone would show little.
    if (failure.what.empty()) {
      EXPECT_GT(of_op[kKernel], kPairs / kShards / 20) << kOps[op];
      EXPECT_GT(of_op[kInfeasible], 0u) << kOps[op];
      EXPECT_GT(of_op[kBadInput], 0u) << kOps[op];
    }
  }
}

// The fuzz names what it finds, whatever that does to the process.
TEST(FuzzGuard, NamesTheCaseThatFailsCrashesEndsOrThrows) {
  const auto failure_at_two = [](const std::function<std::string()>& fail) {
    return run_guarded(4, [&](std::size_t number) { return number == 2 ? fail() : ""; });
  };
  EXPECT_EQ(run_guarded(4, [](std::size_t) { return ""; }).what, "");
  const auto failing = failure_at_two([] { return "wrong"; });
  const auto crashing = failure_at_two([] { return raise(SIGKILL) == 0 ? "survived" : ""; });
  const auto ending = failure_at_two([]() -> std::string { _exit(3); });
  const auto throwing = failure_at_two([]() -> std::string { throw std::out_of_range("far"); });
  for (const GuardedFailure& each : {failing, crashing, ending, throwing}) {
    EXPECT_EQ(each.number, 2u) << each.what;
  }
  EXPECT_EQ(failing.what, "wrong");
  EXPECT_EQ(crashing.what, "it crashed: Killed");
  EXPECT_EQ(ending.what, "it ended the program with exit code 3");
  EXPECT_EQ(throwing.what, "an exception that is no vqgen::Error: far");
}

INSTANTIATE_TEST_SUITE_P(Shard, Fuzz, testing::Range(std::size_t{0}, kShards));

}  // namespace
}  // namespace vqgen::test

// The reader of ncu's tables, on a table written by hand in the documented format, and on failures
// of ncu.
#include "runtime/counters.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/files/files.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "runtime/prepare.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

std::string row(int id, const std::string& metric, const std::string& value) {
  return "\"" + std::to_string(id) +
         "\",\"4711\",\"vqgen\",\"127.0.0.1\",\"gemv_d8b8_\"\"a\"\", (int)2\",\"1\",\"7\",\"(256, "
         "1, "
         "1)\",\"(128, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"" +
         metric + "\",\"\",\"" + value + "\"\n";
}

// Two kernels of one call.
std::string sample() {
  std::string text =
      "==PROF== Connected to process 4711 (vqgen)\n"
      "==PROF== Profiling \"gemv_d8b8\" - 0: 0%....50%....100% - 8 passes\n"
      "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel "
      "Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section "
      "Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n";
  for (const int id : {0, 1}) {
    text += row(id, "dram__bytes.sum", id == 0 ? "4,194,304" : "1,024");
    text += row(id, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", id == 0 ? "12,345" : "0");
    text += row(id, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "100");
    text += row(id, "l1tex__t_bytes.sum", "64");
    text += row(id, "lts__t_bytes.sum", "32");
    text += row(id, "sm__warps_active.avg.pct_of_peak_sustained_active", id == 0 ? "43.75" : "6");
  }
  return text + "==PROF== Disconnected from process 4711\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Counters, AreSummedOverTheKernelsOfACall) {
  for (const std::string& text : {sample(), replaced(sample(), "(vqgen)\n", "(vqgen)\r\n")}) {
    const Counters counters = parse_ncu(text);
    EXPECT_EQ(counters.why, "");
    EXPECT_EQ(counters.values.at("memory_bytes"), 4195328);
    EXPECT_EQ(counters.values.at("bank_conflicts"), 12345);
    EXPECT_EQ(counters.values.at("shared_passes"), 200);
    EXPECT_EQ(counters.values.at("l1_bytes"), 128);
    EXPECT_EQ(counters.values.at("l2_bytes"), 64);
    EXPECT_EQ(counters.values.at("occupancy_percent"), 43.75);  // of the first
    EXPECT_EQ(counters.values.size(), std::size(kCounterMetrics));
  }
}

void expect_none(const std::string& text, const std::vector<std::string>& words) {
  const Counters counters = parse_ncu(text);
  EXPECT_TRUE(counters.values.empty()) << text;
  EXPECT_EQ(counters.why.find('\n'), std::string::npos);
  expect_words(counters.why, words);
}

TEST(Counters, AreAllThereOrNone) {
  expect_none("", {"no table"});
  expect_none(
      "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA "
      "GPU Performance Counters on the target device 0.\n",
      {"ncu: ERR_NVGPUCTRPERM", "permission"});
  expect_none(replaced(sample(), "Metric Value", "Value"), {"no columns"});
  for (const char* value : {"n/a", "nan", "inf", "-5", "", "12x", "1e999"}) {
    expect_none(replaced(sample(), "12,345", value), {"bank_conflicts", "as '"});
  }
  for (const CounterMetric& each : kCounterMetrics) {
    std::string text = sample();
    for (int kernel = 0; kernel < 2; ++kernel) text = replaced(text, each.metric, "other");
    expect_none(text, {"has no", each.metric});
  }
}

TEST(Counters, OfATableCutAnywhereAreNoneOrWhole) {
  const std::string text = sample();
  for (std::size_t size = 0; size < text.size(); ++size) {
    const Counters counters = parse_ncu(text.substr(0, size));
    if (counters.why.empty()) {
      EXPECT_EQ(counters.values.size(), std::size(kCounterMetrics)) << size;
    } else {
      EXPECT_TRUE(counters.values.empty()) << size;
    }
  }
}

class FakeNcu : public ::testing::Test {
 protected:
  Counters counted(const std::string& script) {
    const std::filesystem::path ncu = folder_.path() / "ncu";
    publish_text(ncu, "#!/bin/sh\n" + script);
    std::filesystem::permissions(ncu, std::filesystem::perms::owner_all);
    return count(problem_, plan_, {.tool = "/tool", .gpu = "h200", .seed = 3, .ncu = ncu});
  }

  TempFolder folder_;
  Problem problem_ = read_config(gemv_json(), "c.json").problem;
  Plan plan_ = choose(problem_, find_gpu("h200"));
};

TEST_F(FakeNcu, IsGivenThePlanAsAConfig) {
  const std::string kept = (folder_.path() / "kept.json").string();
  publish_text(folder_.path() / "table", sample());
  const Counters counters =
      counted("cp config.json " + kept + "; echo \"$@\" > " + kept + ".args; cp " +
              (folder_.path() / "table").string() + " ncu.csv\n");
  EXPECT_EQ(counters.why, "");
  EXPECT_EQ(counters.values.at("bank_conflicts"), 12345);
  const Config config = read_config(std::filesystem::path(kept));
  EXPECT_EQ(config.problem, problem_);
  EXPECT_EQ(plan_for(config, find_gpu("h200")), plan_);
  expect_words(read_text(kept + ".args"),
               {"--csv", "--clock-control none", "--log-file ncu.csv",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
                "/tool run config.json --backend cuda", "--seed 3", "--gpu h200"});
}

TEST_F(FakeNcu, ThatFailsSaysWhy) {
  expect_words(counted("echo '==ERROR== The profiler is busy' > ncu.csv; exit 3\n").why,
               {"ncu: The profiler is busy"});
  expect_words(counted("echo vqgen: no device >&2; exit 5\n").why,
               {"ended with status 5", "vqgen: no device"});
  expect_words(counted("exit 0\n").why, {"no table"});
  const Counters missing =
      count(problem_, plan_,
            {.tool = "/tool", .gpu = "", .seed = 1, .ncu = (folder_.path() / "none").string()});
  expect_words(missing.why, {"not in PATH", "Nsight Compute"});
}

}  // namespace
}  // namespace vqgen

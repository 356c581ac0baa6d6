// vqgen list: what ships, by name.
#include <algorithm>

#include "core/profiles.h"
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

// The first word of each line.
std::vector<std::string> first_words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    words.push_back(text.substr(at, text.find(' ', at) - at));
  }
  return words;
}

TEST(List, NamesAllThatShips) {
  const std::map<std::string, std::vector<std::string>> known{
      {"formats", formats_for({})}, {"gpus", gpu_names()}, {"sweeps", sweep_names()}};
  for (const auto& [what, names] : known) {
    SCOPED_TRACE(what);
    const Outcome text = vqgen({"list", what});
    expect_success(text);
    EXPECT_EQ(text.err, "");
    EXPECT_EQ(first_words(text.out), names);
    const Json document = document_of(vqgen({"list", what, "--json"}));
    std::vector<std::string> listed;
    for (const Json& each : document[what]) listed.push_back(each["name"]);
    EXPECT_EQ(listed, names);
  }
}

// A GPU was timed if rows of a tuned table or coefficients of the cost model are its own.
TEST(List, GpusSayWhetherTheyWereTimed) {
  std::map<std::string, Json> gpus;
  const Json listed = document_of(vqgen({"list", "gpus", "--json"}))["gpus"];
  for (const Json& each : listed) gpus[each["name"]] = each;
  EXPECT_TRUE(gpus["h200"]["timed"]);
  EXPECT_GT(gpus["h200"]["tuned_rows"], 0);
  EXPECT_TRUE(gpus["h100"]["timed"]);
  EXPECT_TRUE(gpus["h100"]["cost_model"]);
  EXPECT_FALSE(gpus["t4"]["timed"]);
  const std::string text = vqgen({"list", "gpus"}).out;
  EXPECT_NE(text.find("NVIDIA H200  (timed: "), std::string::npos) << text;
  EXPECT_NE(text.find("Tesla T4  (only modelled)"), std::string::npos) << text;
}

// Each line has the bits per number with scales, as a bundle reports them, and the format's use.
// Recommended formats come first, then those of caches, then those of weights.
TEST(List, FormatsSayTheirUseAndTheirBits) {
  std::vector<std::string> names = formats_for({});
  const Json formats = document_of(vqgen({"list", "formats", "--json"}))["formats"];
  const std::map<std::string, double> bits{
      {"int4-kivi-keys", 5},  {"int4-kivi-values", 5}, {"int8-token", 8.25}, {"int8-channel", 8},
      {"vecinfer-d4b8i8", 2}, {"aqlm-2x8i8", 2},       {"aqlm-1x15", 1.875}, {"fp8-e4m3", 8}};
  std::size_t checked = 0;
  bool all = true;
  std::string last = "cache";
  for (const Json& each : formats) {
    const bool recommended = each["recommended"];
    EXPECT_TRUE(all || !recommended) << each["name"];
    if (all && !recommended) last = "cache";
    all = recommended;
    const std::string use = each["use"] == "weights" ? "weights" : "cache";
    EXPECT_GE(use, last) << each["name"];
    last = use;
    const auto known = bits.find(each["name"]);
    if (known == bits.end()) continue;
    EXPECT_EQ(each["bits_per_element"], known->second) << each["name"];
    ++checked;
  }
  EXPECT_EQ(checked, bits.size());
  const std::string text = vqgen({"list", "formats"}).out;
  EXPECT_NE(text.find("  keys         5 bits  affine numbers of 4 bits"), std::string::npos)
      << text;
  EXPECT_EQ(text.find(" 1 entries"), std::string::npos) << text;
  EXPECT_TRUE(find_format_profile(names.front(), "test").recommended);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, format_names());
}

TEST(List, SaysWhatEachIs) {
  const Json formats = document_of(vqgen({"list", "formats", "--json"}))["formats"];
  for (const Json& each : formats) {
    if (each["name"] != "aqlm-3") continue;
    EXPECT_EQ(each["bits_per_element"], 3);
    EXPECT_EQ(each["entries"], 4096);
    EXPECT_EQ(each["format"]["num_codebooks"], 2);
    EXPECT_NE(each["source"].get<std::string>().find("AQLM"), std::string::npos);
  }
  const std::string gpus = vqgen({"list", "gpus"}).out;
  for (const char* fact : {"sm_90a", "132 SMs", "141 GB", "NVIDIA H200"}) {
    EXPECT_NE(gpus.find(fact), std::string::npos) << fact;
  }
  const Json sweeps = document_of(vqgen({"list", "sweeps", "--json"}));
  for (const Json& each : sweeps["sweeps"]) {
    EXPECT_GT(each["problems"].size(), 0u) << each["name"];
  }
}

TEST(List, OfSomethingElseIsRefused) {
  expect_failure({"list"}, 2, {"what is required", "see vqgen list --help"});
  expect_failure({"list", "kernels"}, 2, {"kernels", "formats,gpus,sweeps"});
}

}  // namespace
}  // namespace vqgen

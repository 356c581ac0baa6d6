// vqgen list: what ships by name.
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
      {"formats", format_names()}, {"gpus", gpu_names()}, {"sweeps", sweep_names()}};
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

TEST(List, SaysWhatEachIs) {
  const Json formats = document_of(vqgen({"list", "formats", "--json"}))["formats"];
  for (const Json& each : formats) {
    if (each["name"] != "aqlm-3") continue;
    EXPECT_EQ(each["bits_per_element"], 3);
    EXPECT_EQ(each["entries"], 4096);
    EXPECT_EQ(each["format"]["residuals"], 2);
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

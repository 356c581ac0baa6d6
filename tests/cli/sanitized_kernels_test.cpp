// The kernels that scripts/gpu_test.sh runs under compute-sanitizer: at least one per dataflow.

#include <fstream>
#include <set>

#include "tests/cli/tool.h"

namespace vqgen {
namespace {

TEST(SanitizedKernels, AreOfEachDataflow) {
  std::ifstream list(VQGEN_SOURCE_DIR "/scripts/lib/sanitized_kernels.txt");
  ASSERT_TRUE(list);
  const Folder folder;
  std::set<std::string> kernels;
  for (std::string name, tools, config; list >> name >> tools && std::getline(list, config);) {
    SCOPED_TRACE(name);
    // The script skips a tool that it does not find here, so a misspelt name would go unnoticed.
    EXPECT_TRUE(tools == "memcheck,racecheck" || tools == "memcheck") << tools;
    const Outcome outcome =
        vqgen({"explain", folder.file("config.json", config), "--gpu", "h200", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string kernel = name.substr(0, name.find('/'));
    const std::string dataflow = document_of(outcome)["plan"]["dataflow"];
    EXPECT_TRUE(kernel.ends_with("_" + dataflow)) << dataflow;
    kernels.insert(kernel);
  }
  for (const auto& each :
       std::filesystem::directory_iterator(VQGEN_SOURCE_DIR "/templates/vq/kernels")) {
    EXPECT_TRUE(kernels.contains(each.path().filename())) << each.path() << " has no line";
  }
}

}  // namespace
}  // namespace vqgen

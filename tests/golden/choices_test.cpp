// Shows every plan that a change moves. `--write` rewrites the file (scripts/write_choices.sh).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/files/files.h"
#include "core/problem/config.h"
#include "core/profiles.h"
#include "tests/golden/choices.h"
#include "tests/thirds.h"

namespace vqgen::test {
namespace {

TEST(Golden, EachPlanIsTheOneInTheFile) {
  std::map<std::string, Choices> golden = read_choices();
  std::string moved;
  for (const std::string& problem : a_third(golden_problems())) {
    const std::string text = difference(golden[problem], choices_of(problem));
    if (!text.empty()) moved += problem + "\n" + text;
  }
  EXPECT_TRUE(moved.empty()) << "plans moved:\n"
                             << moved << "Where that is meant: scripts/write_choices.sh";
}

TEST(Golden, TheFileIsAsItIsWritten) {
  std::string text;
  const std::map<std::string, Choices> golden = read_choices();
  for (const std::string& problem : golden_problems()) {
    const auto choices = golden.find(problem);
    if (choices != golden.end()) text += text_of(problem, choices->second);
  }
  EXPECT_TRUE(read_text(choices_file()) == text)
      << "choices.txt is not as scripts/write_choices.sh writes it";
}

TEST(Golden, ProblemsCoverWhatShips) {
  const std::vector<std::string> problems = golden_problems();
  std::set<std::string> formats;
  std::vector<Problem> read;
  std::map<std::string, int> ops;
  for (const std::string& line : problems) {
    const Json json = parse_json(line, "problems.jsonl");
    for (const char* tensor : {"keys", "values", "weights"}) {
      if (json.contains(tensor) && json[tensor].is_string()) formats.insert(json[tensor]);
    }
    read.push_back(read_config(json, "problems.jsonl").problem);
    ++ops[op_name(read.back())];
  }
  EXPECT_EQ(std::set(problems.begin(), problems.end()).size(), problems.size()) << "one twice";
  EXPECT_GE(problems.size(), 200u);
  for (const char* op : {AttentionDecode::kOp, Gemv::kOp, Gemm::kOp, KvAppend::kOp,
                         KvDequantize::kOp, AttentionMerge::kOp}) {
    EXPECT_GE(ops[op], 10) << op;
  }
  for (const std::string& format : format_names()) EXPECT_TRUE(formats.contains(format)) << format;
  for (const auto& entry :
       std::filesystem::directory_iterator(VQGEN_SOURCE_DIR "/examples/configs")) {
    if (entry.path().extension() != ".json") continue;
    const Problem example = read_config(entry.path()).problem;
    EXPECT_TRUE(std::find(read.begin(), read.end(), example) != read.end()) << entry.path();
  }
}

TEST(Golden, ADifferenceNamesGpusAndBothPlans) {
  EXPECT_EQ(difference({{"a", "x"}, {"b", "x"}, {"c", "y"}}, {{"a", "z"}, {"b", "z"}, {"c", "y"}}),
            "  a b\n    - x\n    + z\n");
  EXPECT_EQ(difference({{"a", "x"}}, {{"b", "y"}}),
            "  b\n    - nothing\n    + y\n  a\n    - x\n    + nothing\n");
  EXPECT_EQ(difference({{"a", "x"}}, {{"a", "x"}}), "");
}

void write() {
  std::string text;
  for (const std::string& problem : golden_problems()) {
    text += text_of(problem, choices_of(problem));
  }
  publish_text(choices_file(), text);
}

}  // namespace
}  // namespace vqgen::test

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--write") == 0) {
    vqgen::test::write();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

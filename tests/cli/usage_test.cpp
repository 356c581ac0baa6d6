// The command line itself: help, version, usage errors, doctor.
#include <algorithm>

#include "tests/cli/tool.h"

namespace vqgen {
namespace {

const std::vector<std::string> kSubcommands{
    "quantize", "count-accesses", "reorder", "repack", "explain", "compile",
    "run",      "measure",        "tune",    "dev",    "export",  "doctor",
    "list",     "version",        "help"};

TEST(Usage, HelpOfTheTool) {
  const Outcome outcome = vqgen({"--help"});
  expect_success(outcome);
  EXPECT_EQ(outcome.err, "");
  for (const std::string& name : kSubcommands) {
    EXPECT_NE(outcome.out.find("\n  " + name + " "), std::string::npos) << name;
  }
  for (const char* hidden : {"tune-worker", "\n  completion ", "\n  man "}) {
    EXPECT_EQ(outcome.out.find(hidden), std::string::npos) << hidden << ", which is for programs";
  }
  for (const char* meaning : {"0 ok", "2 usage", "3 not feasible", "4 verification", "5 device"}) {
    EXPECT_NE(outcome.out.find(meaning), std::string::npos) << meaning;
  }
}

TEST(Usage, HelpOfEverySubcommand) {
  for (const std::string& name : kSubcommands) {
    const Outcome outcome = vqgen({name, "--help"});
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("--json"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("Usage: vqgen " + name), std::string::npos) << outcome.out;
  }
}

TEST(Usage, HelpByItsName) {
  EXPECT_EQ(vqgen({"help"}).out, vqgen({"--help"}).out + "\n");
  for (const Arguments& path :
       {Arguments{"compile"}, Arguments{"db", "merge"}, Arguments{"help"}}) {
    Arguments by_name{"help"}, by_option = path;
    by_name.insert(by_name.end(), path.begin(), path.end());
    by_option.emplace_back("--help");
    const Outcome outcome = vqgen(by_name);
    expect_success(outcome);
    EXPECT_EQ(outcome.out, vqgen(by_option).out + "\n");
  }
  expect_failure({"help", "complie"}, 2,
                 {"unknown subcommand 'complie'", "did you mean 'compile'?"});
  expect_failure({"help", "db", "x"}, 2, {"unknown subcommand 'x'; see vqgen db --help"});
}

// All that the manual page names, and those of the system.
TEST(Usage, AnEmptyVariableCountsAsUnset) {
  std::vector<std::string> names{"TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"};
  bool listed = false;
  for (const std::string& line : lines_of(vqgen({"man"}).out)) {
    if (line.starts_with(".SH ")) listed = line == ".SH ENVIRONMENT";
    if (listed && line.starts_with(".B ")) names.push_back(line.substr(3));
  }
  ASSERT_EQ(names.size(), 12u);
  const Arguments explain{"explain", example("tinycode-projection"), "--gpu", "h200"};
  const std::string expected = vqgen(explain).out;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Outcome outcome = vqgen(explain, {{name, ""}});
    expect_success(outcome);
    EXPECT_EQ(outcome.out, expected);
    expect_success(vqgen({"cache", "ls"}, {{name, ""}}));
  }
}

TEST(Usage, Version) {
  const Outcome outcome = vqgen({"--version"});
  expect_success(outcome);
  EXPECT_TRUE(outcome.out.starts_with("vqgen 0.")) << outcome.out;
  EXPECT_EQ(vqgen({"version"}).out, outcome.out);
  const Json document = document_of(vqgen({"version", "--json"}));
  EXPECT_EQ("vqgen " + document.value("version", "") + "\n", outcome.out);
}

TEST(Usage, WrongArgumentsExitWith2) {
  const std::string config = example("tinycode-projection");
  expect_failure({}, 2, {"subcommand is required", "see vqgen --help"});
  expect_failure({"frobnicate"}, 2, {"unknown subcommand", "'frobnicate'", "see vqgen --help"});
  expect_failure({"--frobnicate"}, 2, {"'--frobnicate'", "see vqgen --help"});
  expect_failure({"compile"}, 2, {"config is required", "see vqgen compile --help"});
  expect_failure({"compile", config, "more"}, 2, {"more", "see vqgen compile --help"});
  expect_failure({"export", config}, 2, {"--out is required", "see vqgen export --help"});
  expect_failure({"quantize", "--input", "a"}, 2, {"--out is required"});
  expect_failure({"dev", "regret"}, 2, {"measured is required", "see vqgen dev regret --help"});
  expect_failure({"cache"}, 2, {"subcommand is required", "see vqgen cache --help"});
  expect_failure({"cache", "frobnicate"}, 2, {"unknown subcommand", "'frobnicate'"});
  expect_failure({"cache", "pack"}, 2, {"out is required", "see vqgen cache pack --help"});
  expect_failure({"doctor", "all"}, 2, {"all", "see vqgen doctor --help"});
}

// The message names the misspelt option, not what is missing as a result.
TEST(Usage, AMisspeltNameIsAnsweredWithTheNearest) {
  const std::string config = example("tinycode-projection");
  expect_failure({"complie", config, "--gpu", "h200"}, 2,
                 {"unknown subcommand 'complie'; see vqgen --help; did you mean 'compile'?"});
  expect_failure({"db", "lnit"}, 2,
                 {"unknown subcommand 'lnit'; see vqgen db --help; did you mean 'lint'?"});
  expect_failure({"compile", config, "--gup", "h200"}, 2,
                 {"unknown option '--gup'; see vqgen compile --help; did you mean '--gpu'?"});
  expect_failure({"quantize", "--inptu=a"}, 2,
                 {"unknown option '--inptu'; see vqgen quantize --help; did you mean '--input'?"});
  expect_failure({"tune", config, "--restrat"}, 2, {"did you mean '--restart'?"});
  expect_failure({"--gpu", "h200", "compile", config}, 2,
                 {"option '--gpu' belongs behind the subcommand; see vqgen compile --help"});
  for (const Arguments& far : {Arguments{"compile", config, "--frob"}, Arguments{"frobnicate"}}) {
    EXPECT_EQ(vqgen(far).err.find("did you mean"), std::string::npos);
  }
  expect_failure({"compile", config, "--gpu", "rtx409"}, 2,
                 {"gpu 'rtx409'", "did you mean 'rtx4090'?"});
  expect_failure({"tune", "lama-3-8b"}, 2, {"sweep 'lama-3-8b'", "did you mean 'llama-3-8b'?"});
  const Outcome outcome = vqgen({"explain", config, "--gpu", "H200", "--json"});
  expect_success(outcome);
  EXPECT_EQ(document_of(outcome)["gpu"], "NVIDIA H200");
}

// The flag counts even if it follows the mistake.
TEST(Usage, WrongValuesExitWith2) {
  const std::string config = example("tinycode-projection");
  expect_failure({"run", "--backend", "vulkan", config}, 2, {"--backend", "vulkan", "host,cuda"});
  expect_failure({"measure", "--backend", "host", config, "--code-distribution", "zipf:0"}, 2,
                 {"'zipf:0'"});
  expect_failure({"dev", "ablate", "--backend", "host", config, "--code-distribution", "hot"}, 2,
                 {"'hot'", "uniform"});
  expect_failure({"run", config, "--check", "all"}, 2, {"--check", "all", "races"});
  expect_failure({"run", config, "--check", "races", "--backend", "cuda"}, 2,
                 {"--check races runs on the host", "--backend host", "compute-sanitizer"});
  expect_failure({"compile", config, "--planner", "dice"}, 2, {"--planner", "dice", "rules"});
  expect_failure({"dev", "space", config, "--sample", "x"}, 2,
                 {"--sample", "see vqgen dev space --help"});
  expect_failure({"dev", "space", config, "--sample", "9", "--top", "3"}, 2, {"--top", "--sample"});
  expect_failure({"dev", "space", config, "--top", "0"}, 2, {"--top", "from 1 to"});
  expect_failure({"dev", "space", config, "--codebooks-in", "here"}, 2, {"--codebooks-in"});
  expect_failure({"quantize", "--input", "a", "--out", "b", "--dtype", "fp8"}, 2,
                 {"--dtype", "fp8", "f16,bf16"});
}

TEST(Usage, AnOptionWithoutItsValueExitsWith2) {
  const Outcome outcome = vqgen({"compile", example("tinycode-projection"), "--json", "--gpu"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(outcome.err.starts_with("vqgen: --gpu")) << outcome.err;
  EXPECT_EQ(document_of(outcome)["exit_code"], 2);
}

TEST(Usage, AnOutputThatCannotBeWrittenIsNoSuccess) {
  for (const char* json : {"", "--json"}) {
    const std::string line = std::string(VQGEN_TOOL) + " doctor " + json + " >/dev/full";
    const Outcome outcome = run_program("sh", {"-c", line}, {{"VQGEN_CACHE_DIR", VQGEN_KERNELS}});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find("standard output could not be written"), std::string::npos);
  }
  const std::string line = std::string(VQGEN_TOOL) + " frobnicate 2>/dev/full";
  EXPECT_EQ(run_program("sh", {"-c", line}).exit_code, 2);
}

TEST(Doctor, SaysWhatWorksInOneDocument) {
  const Outcome outcome = vqgen({"doctor", "--json"});
  EXPECT_EQ(outcome.exit_code, has("NVRTC") ? 0 : 5);
  EXPECT_EQ(outcome.err.empty(), has("NVRTC")) << outcome.err;
  const Json document = document_of(outcome);
  std::vector<std::string> found;
  for (const Json& finding : document["findings"]) {
    found.push_back(finding["what"]);
    EXPECT_TRUE(finding["ok"].is_boolean());
    EXPECT_NE(finding["detail"], "");
  }
  found.erase(std::unique(found.begin(), found.end()), found.end());  // tables may be several
  EXPECT_EQ(found, (std::vector<std::string>{"GPU", "NVRTC", "host compiler", "kernel cache",
                                             "tuned table"}));
  EXPECT_NE(document["gpus"].size(), 0u);
  EXPECT_NE(document["formats"].size(), 0u);
  EXPECT_TRUE(document["version"].is_string());
}

TEST(Doctor, NamesWhatIsMissing) {
  const Folder folder;
  const Outcome outcome =
      vqgen({"doctor", "--json"}, {{"VQGEN_NVRTC", "/nonexistent"},
                                   {"VQGEN_CXX", "/nonexistent"},
                                   {"VQGEN_CACHE_DIR", folder.file("file", "") + "/cache"}});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_TRUE(outcome.err.starts_with("vqgen: commands will fail")) << outcome.err;
  const Json document = document_of(outcome);
  for (const Json& finding : document["findings"]) {
    if (finding["what"] != "GPU" && finding["what"] != "tuned table") {
      EXPECT_EQ(finding["ok"], false) << finding;
    }
  }
}

// The other missing parts fail no command that only needs a compiler for GPUs.
TEST(Doctor, ExitsAsTheCommandsThatNeedWhatIsMissing) {
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  const Folder folder;
  const std::string file = folder.file("file", "");
  EXPECT_EQ(vqgen({"doctor"}, {{"VQGEN_NVRTC", "/nonexistent"}}).exit_code, 5);
  expect_success(vqgen({"doctor"}, {{"VQGEN_CXX", "/nonexistent"}}));
  expect_success(vqgen({"doctor"}, {{"VQGEN_CACHE_DIR", file + "/cache"}}));
  EXPECT_EQ(vqgen({"doctor"}, {{"VQGEN_TUNED_PATH", file}}).exit_code, 2);
}

TEST(Doctor, CountsTheRowsOfTheTablesThatLookupsRead) {
  const Folder folder;
  const std::string good = folder.file("good.jsonl", "{\"vqgen_tuned\":1}\n");
  const std::string bad = folder.file("bad.jsonl", "{\"vqgen_tuned\":1}\n{\"candidates\":1}\n");
  const Outcome outcome = vqgen(
      {"doctor", "--json"}, {{"VQGEN_TUNED_PATH", good + ":" + bad + ":" + folder.path("none")}});
  EXPECT_EQ(outcome.exit_code, has("NVRTC") ? 2 : 5);
  const Json document = document_of(outcome);
  std::vector<Json> tables;
  for (const Json& finding : document["findings"]) {
    if (finding["what"] == "tuned table") tables.push_back(finding);
  }
  ASSERT_GE(tables.size(), 3u);
  EXPECT_EQ(tables[0]["ok"], true);
  EXPECT_EQ(tables[0]["detail"], good + ": 0 rows");
  for (const std::size_t i : {1u, 2u}) EXPECT_EQ(tables[i]["ok"], false) << tables[i];
  EXPECT_NE(tables[1]["detail"].get<std::string>().find(bad + ":2"), std::string::npos);
}

TEST(Doctor, LeavesNothingInTheCache) {
  const Folder folder;
  vqgen({"doctor"}, {{"VQGEN_CACHE_DIR", folder.path("cache")}});
  EXPECT_EQ(folder.names(), std::vector<std::string>{});
}

}  // namespace
}  // namespace vqgen

// Input that reaches the terminal brings no control characters, no other text direction and no
// flood; the tool also runs with a small stack.
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

// ESC; CSI, NEL and OSC of C1; overrides, isolates and marks of direction; line separators; C1 as a
// byte that is not UTF-8.
const std::vector<std::string> kControls{"\x1b[31m",
                                         "\xc2\x9b"
                                         "31m",
                                         "\xc2\x85",
                                         "\xc2\x9d"
                                         "0;title",
                                         "\xe2\x80\xae",
                                         "\xe2\x81\xa6",
                                         "\xe2\x80\x8f",
                                         "\xd8\x9c",
                                         "\xe2\x80\xa8",
                                         "\xe2\x80\xa9",
                                         "\x7f"};

bool holds_control(const std::string& text) {
  return std::any_of(kControls.begin(), kControls.end(),
                     [&](const std::string& each) { return text.find(each) != std::string::npos; });
}

TEST(Printable, NamesFromOutsideControlNoTerminal) {
  for (const std::string& control : kControls) {
    const Folder folder;
    Json json = tiny_gemv();
    json["a" + control + "b"] = 1;
    const std::string config = folder.file("c" + control + ".json", json.dump());
    const Arguments refused{"explain", config};
    for (const Arguments& arguments : {refused, Arguments{"explain", config, "--json"}}) {
      const Outcome outcome = vqgen(arguments);
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_FALSE(holds_control(outcome.err)) << outcome.err;
      EXPECT_FALSE(holds_control(outcome.out)) << outcome.out;
    }
    // Names in results are printable too.
    folder.file("c" + control + ".json", tiny_gemv().dump());
    const Outcome written = vqgen({"export", config, "--gpu", "h200", "--out", config + ".cu"});
    expect_success(written);
    EXPECT_FALSE(holds_control(written.out + written.err)) << written.out;
    const Outcome json_written =
        vqgen({"export", config, "--gpu", "h200", "--out", config + ".cu", "--json"});
    expect_success(json_written);
    EXPECT_FALSE(holds_control(json_written.out)) << json_written.out;
  }
  EXPECT_EQ(vqgen({"explain",
                   "\x9b"
                   "31m.json"})
                .err.find('\x9b'),
            std::string::npos);
  EXPECT_NE(vqgen({"explain", "caf\xc3\xa9.json"}).err.find("caf\xc3\xa9.json"), std::string::npos);
}

TEST(Printable, AMegabyteOfInputIsNotEchoed) {
  const Folder folder;
  const std::string flood(1 << 20, 'x');
  for (const char* field :
       {"/op", "/weights", "/gpu", "/access_counts", "/plan/dataflow", "/more"}) {
    Json json = tiny_gemv();
    json[Json::json_pointer(field)] = flood;
    const std::string config = folder.file("c.json", json.dump());
    for (const Arguments& arguments :
         {Arguments{"explain", config}, Arguments{"explain", config, "--json"}}) {
      const Outcome outcome = vqgen(arguments);
      EXPECT_EQ(outcome.exit_code, 2) << field;
      EXPECT_LT(outcome.err.size(), 4096u) << field;
      EXPECT_LT(outcome.out.size(), 4096u) << field;
      EXPECT_NE(outcome.err.find(config), std::string::npos) << outcome.err;
    }
  }
}

TEST(Printable, AStackOf64KiBIsEnough) {
  const Folder folder;
  const std::string config = folder.file("c.json", tiny_gemv().dump());
  const std::string tool = "ulimit -s 64; exec " + std::string(VQGEN_TOOL) + " ";
  const Variables variables{{"VQGEN_CACHE_DIR", VQGEN_KERNELS}, {"VQGEN_TUNED_PATH", ""}};
  Arguments lines{"version", "list formats", "help", "explain " + config + " --gpu h200",
                  "export " + config + " --gpu h200 --out " + folder.path("k.cu")};
  if (has("NVRTC")) lines.push_back("compile " + config + " --gpu h200");
  for (const std::string& line : lines) {
    const Outcome outcome = run_program("sh", {"-c", tool + line}, variables);
    EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
  }
}

TEST(Printable, AHostCompilerHasTheStackThatTheHardLimitAllows) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string config = folder.file("c.json", tiny_gemv().dump());
  const std::string compiler =
      folder.file("g++",
                  "#!/bin/sh\n[ \"$1\" = --version ] && exec g++ --version\n"
                  "test \"$(ulimit -s)\" -ge 8192 && exec g++ \"$@\"\n"
                  "echo 'g++: error: Segmentation fault' >&2\nexit 1\n");
  std::filesystem::permissions(compiler, std::filesystem::perms(0700));
  const Variables variables{{"VQGEN_CXX", compiler}, {"VQGEN_CACHE_DIR", folder.path("cache")}};
  const auto with = [&](const std::string& limit, const std::string& more) {
    return run_program("sh", {"-c", limit + "; exec " VQGEN_TOOL " " + more}, variables);
  };
  const std::string run = "run " + config + " --backend host";
  const std::string measure = "measure " + config + " --backend host --gpu h200";
  for (const std::string& each : {run, measure}) {
    const Outcome outcome = with("ulimit -s 64", each);
    EXPECT_EQ(outcome.exit_code, 5) << outcome.out;
    EXPECT_NE(outcome.err.find("Segmentation fault; its stack may have only 64 KiB, so raise the "
                               "limit (ulimit -s 8192)"),
              std::string::npos)
        << outcome.err;
  }
  expect_success(with("ulimit -S -s 64", measure));
  // The kernel is in the cache now.
  for (const char* limit : {"ulimit -S -s 64", "ulimit -s 64"}) expect_success(with(limit, run));
}

}  // namespace
}  // namespace vqgen

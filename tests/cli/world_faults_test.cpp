// What the machine may lack: GPUs and formats by name, NVRTC, a driver, a host compiler, a place to
// write.
#include <algorithm>

#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

const std::string kConfig = example("tinycode-projection");

TEST(World, UnknownGpu) {
  for (const char* command : {"compile", "run"}) {
    expect_failure({command, kConfig, "--gpu", "h300"}, 2, {"gpu 'h300' is unknown", "h200"});
  }
  expect_failure({"compile", kConfig, "--gpu", "none.json"}, 2, {"none.json: cannot read"});
  const Folder folder;
  const std::string gpu = folder.file("gpu.json", R"({"name": "mine", "arch": "sm_90"})");
  expect_failure({"compile", kConfig, "--gpu", gpu}, 2, {gpu + ": /: ", "'sms' is missing"});
  Json json = tiny_gemv();
  json["gpu"] = "h300";
  const std::string config = folder.file("config.json", json.dump());
  expect_failure({"compile", config}, 2, {config + ": /gpu: gpu 'h300' is unknown"});
  json["gpu"] = folder.path("none.json");
  folder.file("config.json", json.dump());
  expect_failure({"run", config}, 2,
                 {config + ": /gpu: " + folder.path("none.json"), "cannot read"});
}

TEST(World, AGpuThatNvrtcCannotCompileFor) {
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  const Folder folder;
  const Json gpu = {{"name", "old"},
                    {"arch", "sm_76"},
                    {"sms", 1},
                    {"registers_per_sm", 65536},
                    {"max_threads_per_sm", 1024},
                    {"max_blocks_per_sm", 16},
                    {"shared_bytes_per_sm", 65536},
                    {"shared_bytes_per_block", 65536},
                    {"l2_bytes", 1000},
                    {"memory_bytes", 1000},
                    {"memory_gbps", 1},
                    {"sm_clock_mhz", 1}};
  expect_failure({"compile", kConfig, "--gpu", folder.file("gpu.json", gpu.dump())}, 5,
                 {"cannot compile for 'sm_76'", "choose another GPU"});
}

// The refusal comes before any planning for it.
TEST(World, AGpuThatNoKernelRunsOn) {
  const Folder folder;
  Json gpu = document_of(vqgen({"list", "gpus", "--json"}))["gpus"].back()["spec"];
  gpu["arch"] = "sm_70";
  gpu["warpgroup_products"] = gpu["bf16_products"] = false;
  const std::string file = folder.file("gpu.json", gpu.dump());
  for (const std::string& name : {file, std::string("v100"), std::string("Tesla V100-SXM2-16GB")}) {
    expect_failure({"explain", kConfig, "--gpu", name}, 2,
                   {name, "sm_70 is not supported; take a GPU of sm_75 or newer"});
  }
}

// If others can swap folders, their kernel could run in place of the user's.
TEST(World, ATemporaryFolderThatIsNoneOrIsOpenToOthers) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const auto refuse = [&](const std::string& temporary, const std::vector<std::string>& words) {
    std::vector<std::string> all{"TMPDIR: " + temporary, "set TMPDIR to a folder of your own"};
    all.insert(all.end(), words.begin(), words.end());
    expect_failure({"run", config, "--backend", "host"}, 2, all,
                   {{"TMPDIR", temporary}, {"VQGEN_CACHE_DIR", folder.path("cache")}});
  };
  refuse(folder.path("none"), {"is no folder"});
  refuse(config, {"is no folder"});
  std::filesystem::create_directories(folder.path("open/inner"));
  std::filesystem::permissions(folder.path("open"), std::filesystem::perms(0777));
  refuse(folder.path("open"), {"is not sticky", "chmod go-w " + folder.path("open")});
  refuse(folder.path("open/inner"), {"chmod go-w " + folder.path("open")});
  std::filesystem::permissions(folder.path("open"), std::filesystem::perms(01777));
  expect_success(
      vqgen({"run", config, "--backend", "host"},
            {{"TMPDIR", folder.path("open/inner")}, {"VQGEN_CACHE_DIR", folder.path("cache")}}));
}

// Nothing was timed, and a caller who asked for times must be told.
TEST(World, PlansThatDoNotCompileAreNoSuccess) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const std::string compiler = folder.file(
      "g++", "#!/bin/sh\nif [ \"$1\" = --version ]; then echo g++ 12; else exit 1; fi\n");
  std::filesystem::permissions(compiler, std::filesystem::perms(0700));
  const Variables variables{{"VQGEN_CXX", compiler}, {"VQGEN_CACHE_DIR", folder.path("cache")}};
  for (const Arguments& arguments :
       {Arguments{"measure", config, "--backend", "host", "--gpu", "h200"},
        Arguments{"dev", "ablate", config, "--backend", "host", "--gpu", "h200", "--budget",
                  "2"}}) {
    const Outcome outcome = vqgen(arguments, variables);
    EXPECT_EQ(outcome.exit_code, 5) << arguments[0] << outcome.err;
    EXPECT_NE(outcome.err.find("plans could be timed; the first is compile_failed"),
              std::string::npos)
        << outcome.err;
  }
}

TEST(World, AGpuTooSmallForTheProblem) {
  const Folder folder;
  Json json = tiny_attention();
  json["plan"] = {{"dataflow", "simt"}, {"tile_tokens", 1024}, {"heads_per_block", 2}};
  json["keys"] = {{"vector_size", 2}, {"index_bits", 16}};
  json["plan"]["key_codebook"]["shared"] = 256;
  expect_failure({"compile", folder.file("config.json", json.dump()), "--gpu", "t4"}, 3,
                 {"/plan: needs", "bytes of shared memory", "T4", "put a codebook in global"});
}

TEST(World, NvrtcMissing) {
  const Folder folder;
  expect_failure({"compile", kConfig, "--out", folder.path("out")}, 5,
                 {"NVRTC", "/nonexistent", "install", "VQGEN_NVRTC"},
                 {{"VQGEN_NVRTC", "/nonexistent"}});
  EXPECT_EQ(folder.names(), std::vector<std::string>{});
}

TEST(World, DriverMissing) {
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC to come as far as the driver";
  if (has("GPU")) GTEST_SKIP() << "this machine has a GPU";
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const Outcome outcome = vqgen({"run", config, "--backend", "cuda", "--json"});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("driver"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("install"), std::string::npos) << outcome.err;
  EXPECT_EQ(document_of(outcome)["exit_code"], 5);
}

TEST(World, HostCompilerMissing) {
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  expect_failure({"run", config, "--backend", "host"}, 5,
                 {"no host compiler", "/nonexistent/g++", "install g++"},
                 {{"VQGEN_CXX", "/nonexistent/g++"}});
}

TEST(World, HostCompilerThatFails) {
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  expect_failure({"run", config, "--backend", "host"}, 5, {"no host compiler", "/bin/false"},
                 {{"VQGEN_CXX", "/bin/false"}, {"VQGEN_CACHE_DIR", folder.path("cache")}});
}

TEST(World, HostCompilerThatMakesNothing) {
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  expect_failure({"run", config, "--backend", "host"}, 5,
                 {"host compiler /bin/true makes no library", "VQGEN_CXX"},
                 {{"VQGEN_CXX", "/bin/true"}, {"VQGEN_CACHE_DIR", folder.path("cache")}});
}

TEST(World, NvrtcThatIsAnotherLibrary) {
  const Folder folder;
  expect_failure({"compile", kConfig}, 5, {"libm.so.6 has no nvrtcVersion", "VQGEN_NVRTC"},
                 {{"VQGEN_NVRTC", "libm.so.6"}, {"VQGEN_CACHE_DIR", folder.path("cache")}});
}

TEST(World, TheHelperOfNvrtcMissing) {
  const Folder folder;
  const std::string none = folder.path("vqgen-nvrtc");
  expect_failure({"compile", kConfig}, 5, {"vqgen-nvrtc", none, "VQGEN_NVRTC_HELPER"},
                 {{"VQGEN_NVRTC_HELPER", none}, {"VQGEN_CACHE_DIR", folder.path("cache")}});
}

// A place below a file, where not even root can write.
TEST(World, UnwritableOutput) {
  const Folder folder;
  const std::string below = folder.file("file", "kept") + "/out";
  expect_failure({"export", kConfig, "--out", below}, 2, {below, "cannot write", "choose"});
  expect_failure({"export", kConfig, "--out", folder.path("")}, 2,
                 {"cannot write", "name another"});
  if (has("NVRTC")) {
    expect_failure({"compile", kConfig, "--out", below}, 2, {below, "cannot make the folder"});
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"file"});
}

// The fault is found before the training, which may take long.
TEST(World, UnwritableBundle) {
  const Folder folder;
  const std::string tensors = write_tiny_tensors(folder);
  const std::string below = tensors + "/out";
  expect_failure(quantize_tiny_cache(tensors, below), 2,
                 {below, "can be written", "choose another"});
  const std::string missing = folder.path("missing");
  expect_failure(quantize_tiny_cache(tensors, missing + "/out"), 2,
                 {missing + "/out", "the folder " + missing + " is not there", "choose another"});
  expect_failure(quantize_tiny_cache(tensors, folder.path("")), 2, {"is a folder; name a file"});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"tensors"});
}

TEST(World, ACacheThatCannotBeWrittenIsAWarning) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const Outcome outcome =
      vqgen({"run", config, "--backend", "host"}, {{"VQGEN_CACHE_DIR", config + "/cache"}});
  expect_success(outcome);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("warning: ")) << outcome.err;
  EXPECT_NE(outcome.err.find("VQGEN_CACHE_DIR"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace vqgen

// vqgen cache: what it lists, checks, removes, packs and explains, and layers as users set them.
#include <sys/stat.h>
#include <unistd.h>

#include "core/files/files.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

bool is_kernel(const std::string& name) { return name.ends_with(".vqk"); }

// Kernels come from the host backend, so that these tests need neither a GPU nor NVRTC.
class CacheCommand : public testing::Test {
 protected:
  void SetUp() override {
    if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
    config_ = folder_.file("config.json", tiny_gemv().dump());
    run_into("cache");
  }
  void run_into(const std::string& cache, Variables variables = {}) const {
    variables["VQGEN_CACHE_DIR"] = folder_.path(cache);
    const Outcome outcome = vqgen({"run", config_, "--backend", "host"}, variables);
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
  }
  Outcome command(Arguments arguments, Variables variables = {}) const {
    variables.emplace("VQGEN_CACHE_DIR", folder_.path("cache"));
    arguments.insert(arguments.begin(), "cache");
    return vqgen(arguments, variables);
  }
  Json document(Arguments arguments, const Variables& variables = {}) const {
    arguments.emplace_back("--json");
    const Outcome outcome = command(arguments, variables);
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    return document_of(outcome);
  }
  // The kernels in a folder that the test owns.
  std::vector<std::string> kernels(const std::string& below) const {
    std::vector<std::string> found;
    for (const std::string& name : folder_.names()) {
      if (name.starts_with(below + "/") && is_kernel(name)) found.push_back(folder_.path(name));
    }
    return found;
  }
  void damage_the_kernel() const {
    ASSERT_EQ(kernels("cache").size(), 1u);
    std::string text = read_text(kernels("cache")[0]);
    text[text.size() / 2] ^= 1;
    publish_text(kernels("cache")[0], text);
  }

  Folder folder_;
  std::string config_;
};

TEST_F(CacheCommand, LsListsEveryLayer) {
  expect_success(command({"pack", folder_.path("p.vqpack")}));
  const Json list = document({"ls"}, {{"VQGEN_CACHE_PATH", folder_.path("p.vqpack")}});
  ASSERT_EQ(list["layers"].size(), 2u);
  EXPECT_EQ(list["layers"][0]["path"], folder_.path("p.vqpack"));
  EXPECT_EQ(list["layers"][1]["path"], folder_.path("cache"));
  ASSERT_EQ(list["entries"].size(), 2u);
  for (const Json& entry : list["entries"]) {
    EXPECT_EQ(entry["arch"], "host");
    EXPECT_TRUE(entry["kernel"].get<std::string>().starts_with("gemv")) << entry;
    EXPECT_EQ(entry["bytes"], read_text(kernels("cache")[0]).size());
    EXPECT_LT(entry["age_s"].get<int>(), 600);
  }
  const std::string digest = list["entries"][0]["digest"];
  EXPECT_NE(command({"ls"}).out.find(digest.substr(0, 12)), std::string::npos);
  EXPECT_EQ(document({"ls"}, {{"VQGEN_CACHE_DIR", folder_.path("none")}})["entries"].size(), 0u);
}

TEST_F(CacheCommand, NamesFromTheDiskBreakNoLine) {
  run_into("ca\nche\x1b");
  for (const char* name : {"ls", "verify"}) {
    const Outcome outcome = command({name}, {{"VQGEN_CACHE_DIR", folder_.path("ca\nche\x1b")}});
    expect_success(outcome);
    EXPECT_EQ(outcome.out.find("\nche"), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << outcome.out;
  }
}

TEST_F(CacheCommand, VerifyExitsWith4WhereSomethingIsDamaged) {
  EXPECT_EQ(document({"verify"})["checked"], 1);
  damage_the_kernel();
  const Outcome outcome = command({"verify", "--json"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find("1 damaged"), std::string::npos) << outcome.err;
  EXPECT_EQ(document_of(outcome)["damaged"][0]["layer"], folder_.path("cache"));
  EXPECT_EQ(kernels("cache").size(), 1u) << "verify changes nothing";
  EXPECT_EQ(command({"ls"}).exit_code, 0);

  run_into("cache");  // compiles it again
  EXPECT_EQ(document({"verify"})["checked"], 1);
  const Outcome no_pack =
      command({"verify"}, {{"VQGEN_CACHE_PATH", folder_.file("no.vqpack", "no pack")}});
  EXPECT_EQ(no_pack.exit_code, 4);
  EXPECT_NE(no_pack.err.find("no.vqpack"), std::string::npos) << no_pack.err;
}

// Several versions of vqgen may share a folder.
TEST_F(CacheCommand, KernelsOfANewerFormatAreNoDamage) {
  const std::string whole = read_text(kernels("cache")[0]);
  std::string text = whole;
  text[8] = 2;  // the format version follows the magic
  publish_text(kernels("cache")[0], text);
  const Outcome outcome = command({"verify"});
  expect_success(outcome);
  EXPECT_NE(outcome.out.find("is format version 2, and this vqgen knows up to 1; upgrade vqgen"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(command({"ls"}).out.find("  newer  "), std::string::npos);
  const std::string pack = folder_.path("p.vqpack");
  expect_failure({"cache", "pack", pack, "--from", folder_.path("cache")}, 2,
                 {"is format version 2", "upgrade vqgen"});
  publish_text(kernels("cache")[0], whole);
  const std::filesystem::path other = folder_.path("cache/00");
  std::filesystem::create_directories(other);
  publish_text(other / (std::string(64, '0') + ".vqk"), text);
  const Outcome packed = command({"pack", pack});
  expect_success(packed);
  EXPECT_NE(packed.out.find(": 1 entries"), std::string::npos) << packed.out;
  EXPECT_NE(packed.err.find("left out: the newest is format version 2"), std::string::npos)
      << packed.err;
}

TEST_F(CacheCommand, PackAndUnpackGiveTheSameBytes) {
  const std::string pack = folder_.path("p.vqpack");
  EXPECT_EQ(document({"pack", pack})["entries"], 1);
  EXPECT_EQ(document({"unpack", pack, "--to", folder_.path("copy")})["written"], 1);
  EXPECT_EQ(document({"unpack", pack, "--to", folder_.path("copy")})["were_there"], 1);
  EXPECT_EQ(read_text(kernels("copy")[0]), read_text(kernels("cache")[0]));
  EXPECT_EQ(document({"pack", folder_.path("q"), "--from", folder_.path("copy")})["entries"], 1);
  EXPECT_EQ(read_text(folder_.path("q")), read_text(pack));

  run_into("fresh", {{"VQGEN_CACHE_PATH", pack}});
  EXPECT_TRUE(kernels("fresh").empty()) << "the pack had it";
  std::string text = read_text(pack);
  text[text.size() / 2] ^= 1;
  publish_text(pack, text);
  run_into("fresh", {{"VQGEN_CACHE_PATH", pack}});
  EXPECT_EQ(kernels("fresh").size(), 1u) << "what is damaged is compiled";
  const Outcome damaged = command({"unpack", pack, "--to", folder_.path("other")});
  EXPECT_EQ(damaged.exit_code, 4);
  EXPECT_TRUE(kernels("other").empty());
}

TEST_F(CacheCommand, PackOfNothingOrToNowhereIsAnError) {
  const std::string pack = folder_.path("p.vqpack");
  expect_failure({"cache", "pack", pack, "--from", folder_.path("none")}, 2,
                 {"none holds no kernels", "--from"});
  expect_failure({"cache", "pack", folder_.path("none/p")}, 2, {"none", "choose another"});
  expect_failure({"cache", "unpack", config_}, 2, {"config.json", "is no pack"});
  damage_the_kernel();
  expect_failure({"cache", "pack", pack, "--from", folder_.path("cache")}, 2, {"no kernels"});
  EXPECT_FALSE(std::filesystem::exists(pack));
}

TEST_F(CacheCommand, GcAndClearRemoveWhatIsTheirs) {
  const std::string notes = folder_.file("cache/notes.txt", "mine");
  EXPECT_EQ(document({"gc"})["kept_entries"], 1);
  EXPECT_EQ(document({"gc", "--max-age", "1"})["removed_entries"], 0);
  EXPECT_EQ(document({"gc", "--max-bytes", "0"})["removed_entries"], 1);
  run_into("cache");
  EXPECT_EQ(document({"gc"}, {{"VQGEN_CACHE_MAX_BYTES", "10"}})["removed_entries"], 1);
  run_into("cache");
  EXPECT_EQ(document({"clear"})["removed_entries"], 1);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"cache/notes.txt", "config.json"}));
  for (const char* wrong : {"-1", "many", "1e30"}) {
    expect_failure({"cache", "gc", "--max-bytes", wrong}, 2, {"--max-bytes", wrong});
  }
  for (const char* wrong : {"-1", "nan", "1e30"}) {
    expect_failure({"cache", "gc", "--max-age", wrong}, 2, {"--max-age"});
  }
  expect_failure({"cache", "gc"}, 2, {"VQGEN_CACHE_MAX_BYTES", "'2G'"},
                 {{"VQGEN_CACHE_MAX_BYTES", "2G"}});
  expect_failure({"cache", "gc"}, 2, {"VQGEN_DEPENDENT_LAUNCHES", "'off'", "0 or 1"},
                 {{"VQGEN_DEPENDENT_LAUNCHES", "off"}});
}

TEST_F(CacheCommand, WithoutAHomeAPrivateFolderIsUsed) {
  std::filesystem::create_directories(folder_.path("tmp"));
  Variables variables{{"VQGEN_CACHE_DIR", ""},
                      {"XDG_CACHE_HOME", ""},
                      {"HOME", ""},
                      {"TMPDIR", folder_.path("tmp")}};
  const Outcome outcome = vqgen({"run", config_, "--backend", "host"}, variables);
  expect_success(outcome);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(kernels("tmp").size(), 1u);
  const std::string own = folder_.path("tmp/vqgen-" + std::to_string(::geteuid()));
  struct stat status {};
  ASSERT_EQ(::stat(own.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);

  variables["TMPDIR"] = folder_.path("missing");
  expect_failure({"run", config_, "--backend", "host"}, 2, {"TMPDIR", "is no folder"}, variables);
  expect_failure({"cache", "gc"}, 2, {"no folder", "VQGEN_CACHE_DIR"}, variables);
}

class CacheExplain : public CacheCommand {
 protected:
  void SetUp() override {
    CacheCommand::SetUp();
    if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  }
  Json compiled(const std::string& gpu) const {
    const Outcome outcome = vqgen({"compile", config_, "--gpu", gpu, "--json"},
                                  {{"VQGEN_CACHE_DIR", folder_.path("cuda")}});
    expect_success(outcome);
    return document_of(outcome)["kernels"][0];
  }
  Json explained(const std::string& gpu) const {
    return document({"explain", config_, "--gpu", gpu},
                    {{"VQGEN_CACHE_DIR", folder_.path("cuda")}})["kernels"][0];
  }
};

TEST_F(CacheExplain, SaysWhatIsLookedUpAndWhatIsNearest) {
  EXPECT_EQ(explained("h200")["cache_miss"], "no entry");
  EXPECT_EQ(explained("h200")["nearest"], nullptr);
  EXPECT_EQ(compiled("h200")["cache_miss"], "no entry");
  EXPECT_EQ(compiled("h200")["cache_layer"], folder_.path("cuda"));
  const Json hit = explained("h200");
  EXPECT_EQ(hit["cache"], "hit");
  EXPECT_EQ(hit["layer"], folder_.path("cuda"));
  EXPECT_EQ(hit["key"]["arch"], "sm_90a");
  EXPECT_TRUE(hit["key"]["compiler"].get<std::string>().starts_with("nvrtc ")) << hit;
  ASSERT_EQ(kernels("cuda").size(), 1u);
  EXPECT_NE(kernels("cuda")[0].find(hit["digest"].get<std::string>()), std::string::npos);

  publish_text(kernels("cuda")[0], "rubbish");
  EXPECT_EQ(explained("h200")["cache_miss"], "damaged");
  EXPECT_EQ(kernels("cuda").size(), 1u) << "explain changes nothing";
  EXPECT_EQ(compiled("h200")["cache_miss"], "damaged");
}

// The mma plan of so small a GEMM is the same for both, and so is the kernel's name.
TEST_F(CacheExplain, AnotherArchitectureIsNamed) {
  Json gemv = tiny_gemv();
  gemv["plan"] = {{"dataflow", "mma"}};
  config_ = folder_.file("fragments.json", gemv.dump());
  compiled("h100");
  const Json other = explained("a100");
  EXPECT_EQ(other["cache"], "miss");
  ASSERT_NE(other["nearest"], nullptr) << other;
  EXPECT_TRUE(
      other["cache_miss"].get<std::string>().starts_with("arch differs: 'sm_90a' is stored"))
      << other;
  EXPECT_EQ(compiled("a100")["cache_miss"], other["cache_miss"]);
}

}  // namespace
}  // namespace vqgen

// Every field of the key changes it, and nothing else does; the places of the cache.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "runtime/cache/artifact_cache.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

TEST(ArtifactKeys, EachFieldChangesTheKey) {
  const KernelSource source = test::some_source();
  const CompilerIdentity compiler{"nvrtc 13.0 build-id 00", {"-a", "-b"}};
  std::set<std::string> keys{artifact_key(source, compiler).hex()};
  const auto expect_new = [&](const KernelSource& s, const CompilerIdentity& c, const char* what) {
    EXPECT_TRUE(keys.insert(artifact_key(s, c).hex()).second) << what;
  };
  const auto with_source = [&](const char* what, const std::function<void(KernelSource&)>& change) {
    KernelSource changed = source;
    change(changed);
    expect_new(changed, compiler, what);
  };
  const auto with_compiler = [&](const char* what,
                                 const std::function<void(CompilerIdentity&)>& change) {
    CompilerIdentity changed = compiler;
    change(changed);
    expect_new(source, changed, what);
  };
  with_source("text", [](KernelSource& s) { s.text += ' '; });
  with_source("arch", [](KernelSource& s) { s.arch = "sm_90"; });
  with_source("entry name", [](KernelSource& s) { s.entries[1].name = "gemv_c"; });
  with_source("fewer entries", [](KernelSource& s) { s.entries.pop_back(); });
  with_source("entry order", [](KernelSource& s) { std::swap(s.entries[0], s.entries[1]); });
  with_compiler("compiler", [](CompilerIdentity& c) { c.name = "nvrtc 13.0 build-id 01"; });
  with_compiler("option", [](CompilerIdentity& c) { c.options[0] = "-c"; });
  with_compiler("more options", [](CompilerIdentity& c) { c.options.push_back("-b"); });
  with_compiler("option order", [](CompilerIdentity& c) { std::swap(c.options[0], c.options[1]); });
  with_compiler("joined options", [](CompilerIdentity& c) { c.options = {"-a-b"}; });
}

TEST(ArtifactKeys, ListsDoNotRunIntoEachOther) {
  ArtifactKey a{"t", "a", "c", {"x", "y"}, {"z"}};
  ArtifactKey b{"t", "a", "c", {"x"}, {"y", "z"}};
  EXPECT_NE(a.hex(), b.hex());
  ArtifactKey c{"t", "ac", "", {}, {}};
  ArtifactKey d{"t", "a", "c", {}, {}};
  EXPECT_NE(c.hex(), d.hex());
}

// The lines of comments say for whom a kernel is, and why its plan was taken.
TEST(ArtifactKeys, LinesOfCommentsAreNeutralAndCodeIsNot) {
  const CompilerIdentity compiler{"nvrtc 1", {}};
  const auto key = [&](const std::string& text) {
    KernelSource source;
    source.text = text;
    return artifact_key(source, compiler).hex();
  };
  const std::string one = "// for H100\n  // why\nint x;\n#line 1 \"a\"\n";
  EXPECT_EQ(key(one), key("// for H200\nint x;\n#line 1 \"a\"\n// at the end"));
  EXPECT_NE(key(one), key("// for H100\nint y;\n#line 1 \"a\"\n"));
  EXPECT_NE(key(one), key("int x; // for H100\n#line 1 \"a\"\n"));  // not a line of its own
}

TEST(ArtifactKeys, LaunchShapeIsNeutral) {
  const CompilerIdentity compiler{"nvrtc", {}};
  KernelSource source = test::some_source();
  const std::string key = artifact_key(source, compiler).hex();
  EXPECT_EQ(key.size(), 64u);
  source.entries[0].grid = {99, 2, 3};
  source.entries[0].shared_bytes = 5;
  source.op = "other";
  EXPECT_EQ(artifact_key(source, compiler).hex(), key);
}

TEST(DefaultCacheDir, FollowsTheLadder) {
  using Path = std::filesystem::path;
  EXPECT_EQ(default_cache_dir({"/a", "/b", "/c"}), Path("/a"));
  EXPECT_EQ(default_cache_dir({"here", "/b", "/c"}), Path("here"));
  EXPECT_EQ(default_cache_dir({"", "/b", "/c"}), Path("/b/vqgen"));
  EXPECT_EQ(default_cache_dir({{}, "/b", "/c"}), Path("/b/vqgen"));
  EXPECT_EQ(default_cache_dir({{}, "b", "/c"}), Path("/c/.cache/vqgen"));
  EXPECT_EQ(default_cache_dir({{}, {}, "/c"}), Path("/c/.cache/vqgen"));
  EXPECT_EQ(default_cache_dir({{}, {}, ""}), std::nullopt);
  EXPECT_EQ(default_cache_dir({}), std::nullopt);
}

}  // namespace
}  // namespace vqgen

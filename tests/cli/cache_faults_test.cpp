// Caches that cannot be read or cleaned: each command names the place, and its exit code says so.
#include <sys/stat.h>

#include <algorithm>

#include "tests/cli/tool.h"

namespace vqgen {
namespace {

constexpr const char* kUser = "VQGEN_CACHE_DIR";

class CacheFaults : public testing::Test {
 protected:
  void SetUp() override { set_mode("", 0755); }  // lets other users than this one in
  void TearDown() override {
    for (const char* name : {"cache", "cache/aa"}) ::chmod(folder_.path(name).c_str(), 0755);
  }
  void set_mode(const std::string& name, mode_t mode) const {
    ASSERT_EQ(::chmod(folder_.path(name).c_str(), mode), 0) << name;
  }
  // A file that looks like an entry, and is removed as one.
  std::string entry() const {
    std::filesystem::create_directories(folder_.path("cache/aa"));
    return folder_.file("cache/aa/" + std::string(64, 'a') + ".vqk", "a kernel");
  }
  // Expects that `vqgen cache NAME` ends with the code, has one line with the words, and lists the
  // place.
  void expect_named(const Outcome& outcome, int exit_code, const std::string& path,
                    const std::vector<std::string>& words) const {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("vqgen: ")) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << word << ": " << outcome.err;
    }
    const Json faults = document_of(outcome)["faults"];
    EXPECT_TRUE(std::any_of(faults.begin(), faults.end(), [&](const Json& fault) {
      return fault["path"] == path;
    })) << faults;
  }
  void expect_all_named(const Variables& variables, const std::string& path,
                        const std::vector<std::string>& words) const {
    for (const auto& [name, code] : {std::pair("ls", 2), {"verify", 4}, {"gc", 2}, {"clear", 2}}) {
      SCOPED_TRACE(name);
      expect_named(vqgen({"cache", name, "--json"}, variables), code, path, words);
    }
  }

  Folder folder_;
};

TEST_F(CacheFaults, AFileInThePlaceOfTheFolder) {
  const std::string file = folder_.file("file", "no cache");
  expect_all_named({{kUser, file}}, file, {file, "cannot be read: Not a directory"});
  expect_failure({"cache", "pack", folder_.path("p"), "--from", file}, 2, {file, "cannot be read"});
}

TEST_F(CacheFaults, AFolderOrPipeInThePlaceOfAnEntry) {
  const std::string path = entry();
  std::filesystem::remove(path);
  const Variables variables{{kUser, folder_.path("cache")}};
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_all_named(variables, path, {path, "is no file", "remove it"});
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/deeper");
  expect_all_named(variables, path, {path, "is no file", "remove it"});
  EXPECT_TRUE(std::filesystem::exists(path + "/deeper"));
}

TEST_F(CacheFaults, AFolderThatMayNotBeRead) {
  entry();
  for (const char* closed : {"cache/aa", "cache"}) {
    set_mode(closed, 0000);
    for (const auto& [name, code] : {std::pair("ls", 2), {"verify", 4}, {"gc", 2}, {"clear", 2}}) {
      const auto outcome =
          vqgen_unprivileged({"cache", name, "--json"}, {{kUser, folder_.path("cache")}});
      if (!outcome) GTEST_SKIP() << "nobody cannot run the tool here";
      SCOPED_TRACE(name);
      expect_named(*outcome, code, folder_.path(closed),
                   {folder_.path(closed), "cannot be read: Permission denied"});
    }
  }
}

TEST_F(CacheFaults, AFolderInWhichNothingMayBeRemoved) {
  const std::string path = entry();
  set_mode("cache/aa", 0555);
  const std::vector<Arguments> commands{{"cache", "gc", "--max-bytes", "0", "--json"},
                                        {"cache", "clear", "--json"}};
  for (const Arguments& command : commands) {
    const auto outcome = vqgen_unprivileged(command, {{kUser, folder_.path("cache")}});
    if (!outcome) GTEST_SKIP() << "nobody cannot run the tool here";
    expect_named(*outcome, 2, path, {path, "cannot be removed: Permission denied"});
    EXPECT_EQ(document_of(*outcome)["removed_entries"], 0);
    EXPECT_EQ(document_of(*outcome)["kept_entries"], 1);
  }
}

TEST_F(CacheFaults, AFolderThatOthersCanWriteToIsSkippedWithOneWarning) {
  entry();
  set_mode("cache", 0777);
  const Variables variables{{kUser, folder_.path("cache")}};
  const Outcome list = vqgen({"cache", "ls", "--json"}, variables);
  expect_success(list);
  EXPECT_EQ(std::count(list.err.begin(), list.err.end(), '\n'), 1) << list.err;
  for (const char* words : {"warning: ", "memory alone", "chmod -R go-w"}) {
    EXPECT_NE(list.err.find(words), std::string::npos) << list.err;
  }
  EXPECT_NE(list.err.find(folder_.path("cache")), std::string::npos) << list.err;
  EXPECT_EQ(document_of(list)["layers"].size(), 0u);
  EXPECT_EQ(vqgen({"cache", "verify"}, variables).exit_code, 4);
  expect_failure({"cache", "pack", folder_.path("p")}, 2, {"chmod -R go-w"}, variables);
  expect_failure({"cache", "unpack", folder_.path("p"), "--to", folder_.path("cache")}, 2,
                 {"chmod -R go-w"}, variables);
  expect_success(vqgen({"cache", "clear"}, variables));
}

}  // namespace
}  // namespace vqgen

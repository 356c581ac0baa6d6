// Code is loaded only from folders, packs and files that nobody but their owner can change. Owners
// and groups are changed if the tests run as root.
#include "runtime/cache/places.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files/files.h"
#include "runtime/cache/pack.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kOther = 65534;

class CacheTrust : public test::WithKernel {
 protected:
  void SetUp() override {
    WithKernel::SetUp();
    ArtifactCache cache({.folder = user()});
    ASSERT_TRUE(cache.store(key_, artifact_));
    publish_file(pack(), encode_pack({{key_.hex(), encode_artifact(key_, artifact_)}}));
  }
  std::filesystem::path user() const { return folder_ / "user"; }
  std::filesystem::path pack() const { return folder_ / "packs"; }
  static void set_mode(const std::filesystem::path& path, mode_t mode) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0) << path;
  }
  bool hit(const CacheOptions& options) const {
    return ArtifactCache(options).look_up(key_).artifact.has_value();
  }
  CacheOptions own() const {
    CacheOptions options;
    options.folder = user();
    return options;
  }
  CacheOptions named(const std::filesystem::path& path) const {
    CacheOptions options;
    options.read_only = {path};
    return options;
  }
};

TEST_F(CacheTrust, AFolderThatOthersCanWriteToIsNotUsed) {
  EXPECT_TRUE(hit(own()));
  for (const mode_t mode : {0777u, 01777u, 0757u}) {
    set_mode(user(), mode);
    for (const CacheOptions& options : {own(), named(user())}) {
      ArtifactCache cache(options);
      EXPECT_FALSE(cache.look_up(key_).artifact.has_value()) << mode;
      EXPECT_FALSE(cache.store(key_, artifact_));
      EXPECT_TRUE(cache.look_up(key_).artifact.has_value()) << "memory keeps it";
      EXPECT_THAT(cache.warning(), HasSubstr(user().string()));
      EXPECT_THAT(cache.warning(), HasSubstr("chmod -R go-w"));
    }
  }
  set_mode(user(), 0755);
  EXPECT_TRUE(hit(own()));
  EXPECT_TRUE(hit(named(user())));
}

TEST_F(CacheTrust, AGroupThatWritesMustBeTheUsersOwn) {
  set_mode(user(), 0775);
  ASSERT_EQ(::chown(user().c_str(), static_cast<uid_t>(-1), ::getegid()), 0);
  EXPECT_TRUE(hit(own())) << "as a umask of 002 makes it";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give the folder to another group";
  ASSERT_EQ(::chown(user().c_str(), static_cast<uid_t>(-1), ::getegid() + 1), 0);
  EXPECT_FALSE(hit(own()));
  EXPECT_FALSE(hit(named(user())));
  set_mode(user(), 0755);
  EXPECT_TRUE(hit(own()));
}

TEST_F(CacheTrust, APackThatOthersCanReplaceIsNotUsed) {
  const auto shared = folder_ / "shared";
  std::filesystem::create_directories(shared);
  std::filesystem::rename(pack(), shared / "p");
  EXPECT_TRUE(hit(named(shared / "p")));
  set_mode(shared / "p", 0666);
  EXPECT_FALSE(hit(named(shared / "p")));
  set_mode(shared / "p", 0444);
  EXPECT_TRUE(hit(named(shared / "p")));
  set_mode(shared, 0777);
  EXPECT_THAT(ArtifactCache(named(shared / "p")).warning(),
              HasSubstr("others can write to " + shared.string()));
  set_mode(shared, 01777);
  EXPECT_TRUE(hit(named(shared / "p"))) << "nobody else can remove it from a sticky folder";
}

TEST_F(CacheTrust, OwnersCount) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(user().c_str(), kOther, kOther), 0);
  EXPECT_THAT(ArtifactCache(own()).warning(), HasSubstr("belongs to user 65534"));
  EXPECT_TRUE(hit(named(user()))) << "who names a folder trusts its owner";
  ASSERT_EQ(::chown(FolderLayer(user()).path_of(key_.hex()).c_str(), kOther, kOther), 0);
  EXPECT_TRUE(hit(named(user())));
  ASSERT_EQ(::chown(FolderLayer(user()).path_of(key_.hex()).c_str(), kOther - 1, kOther), 0);
  EXPECT_FALSE(hit(named(user()))) << "an entry of a third user";
  ASSERT_EQ(::chown(pack().c_str(), kOther, kOther), 0);
  EXPECT_TRUE(hit(named(pack())));
  set_mode(folder_, 01777);
  EXPECT_THAT(ArtifactCache(named(pack())).warning(), HasSubstr("put it elsewhere"));
}

TEST_F(CacheTrust, AnEntryThatOthersCanChangeIsMadeAnew) {
  const auto entry = FolderLayer(user()).path_of(key_.hex());
  set_mode(entry, 0666);
  ArtifactCache cache({.folder = user()});
  const Lookup missed = cache.look_up(key_);
  EXPECT_FALSE(missed.artifact || missed.damaged);
  EXPECT_TRUE(cache.store(key_, artifact_));
  EXPECT_TRUE(cache.look_up(key_).artifact.has_value());
}

TEST_F(CacheTrust, WhatIsMadeIsClosedWhateverTheUmask) {
  const mode_t before = ::umask(0);
  const auto fresh = folder_ / "a" / "b";
  ArtifactCache cache({.folder = fresh});
  const auto lock = cache.lock(key_);
  const bool stored = cache.store(key_, artifact_);
  ::umask(before);
  EXPECT_TRUE(stored);
  for (const auto& made : std::filesystem::recursive_directory_iterator(folder_ / "a")) {
    struct stat status {};
    ASSERT_EQ(::stat(made.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0022, 0u) << made.path();
  }
  CacheOptions options;
  options.folder = fresh;
  EXPECT_TRUE(hit(options));
}

}  // namespace
}  // namespace vqgen

// What a bounded cache removes, what it keeps, and that no reader is hurt.
#include "runtime/cache/folder_layer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "core/files/files.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

class CacheBounds : public test::WithKernel {
 protected:
  static void make_older(const std::filesystem::path& path, std::chrono::seconds age) {
    const timespec then{std::time(nullptr) - age.count(), 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  std::filesystem::path path_of(const ArtifactKey& key) const {
    return FolderLayer(folder_).path_of(key.hex());
  }
  // Stores one more kernel, last used `age` ago.
  ArtifactKey stored(std::chrono::seconds age) {
    source_.text += 'x';
    const ArtifactKey key = artifact_key(source_, backend_.compiler(source_));
    EXPECT_TRUE(ArtifactCache({.folder = folder_}).store(key, backend_.compile(source_)));
    make_older(path_of(key), age);
    return key;
  }
  bool there(const ArtifactKey& key) const { return std::filesystem::exists(path_of(key)); }
  std::uint64_t size_of(const ArtifactKey& key) const {
    return std::filesystem::file_size(path_of(key));
  }
  std::int64_t age_of(const ArtifactKey& key) const {
    struct stat status {};
    EXPECT_EQ(::stat(path_of(key).c_str(), &status), 0);
    return std::time(nullptr) - status.st_mtime;
  }
  std::filesystem::path aged(const std::string& name, std::chrono::seconds age) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    publish_text(folder_ / name, "what");
    make_older(folder_ / name, age);
    return folder_ / name;
  }
};

TEST_F(CacheBounds, TheLeastRecentlyUsedGoesFirst) {
  const ArtifactKey used = stored(5h);
  const ArtifactKey old = stored(4h);
  const ArtifactKey young = stored(3h);
  EXPECT_TRUE(ArtifactCache({.folder = folder_}).look_up(used).artifact.has_value());
  const std::uint64_t both = size_of(young) + size_of(used);
  const Collected collected = collect(folder_, {.max_bytes = both});
  EXPECT_FALSE(there(old));
  EXPECT_TRUE(there(used) && there(young));
  EXPECT_EQ(collected.entries, 1);
  EXPECT_EQ(collected.kept_entries, 2);
  EXPECT_EQ(collected.kept_bytes, both);
  EXPECT_GT(collected.bytes, 0u);
}

TEST_F(CacheBounds, AHitStampsAtMostOnceAnHour) {
  const ArtifactKey recent = stored(30min);
  const ArtifactKey old = stored(2h);
  ArtifactCache cache({.folder = folder_});
  EXPECT_TRUE(cache.look_up(recent).artifact && cache.look_up(old).artifact);
  EXPECT_GE(age_of(recent), 29 * 60);
  EXPECT_LT(age_of(old), 60);
  make_older(path_of(old), 2h);
  ArtifactCache reader({.read_only = {folder_}});
  EXPECT_TRUE(reader.look_up(old).artifact.has_value());
  EXPECT_GE(age_of(old), 7000) << "a read-only layer is left as it is";
}

TEST_F(CacheBounds, AgeCountsFromTheLastUse) {
  const ArtifactKey old = stored(50h);
  const ArtifactKey young = stored(40h);
  collect(folder_, {.max_age = 45h});
  EXPECT_FALSE(there(old));
  EXPECT_TRUE(there(young));
  collect(folder_, {});
  EXPECT_TRUE(there(young));
  collect(folder_, {.max_bytes = 0});
  EXPECT_FALSE(there(young));
}

TEST_F(CacheBounds, LeftoversGoAndStrangersStay) {
  stored(0s);
  const std::string digest(64, 'a');
  const auto old_temporary = aged("aa/" + digest + ".vqk.tmp-12-3-4", 2h);
  const auto new_temporary = aged("aa/" + digest + ".vqk.tmp-12-3-5", 10min);
  const auto damaged = aged("aa/" + digest + ".vqk.damaged", 0s);
  const auto old_lock = aged("locks/" + digest + ".lock", 2h);
  const auto new_lock = aged("locks/" + digest + ".lock2", 0s);
  const std::vector<std::filesystem::path> strangers{
      new_lock,
      aged("notes.txt", 9h),
      aged("aa/notes.vqk", 9h),
      aged("bb/" + digest + ".vqk", 9h),
      aged("aa/deep/" + digest + ".vqk", 9h),
      aged("locks/notes", 9h),
      aged("aa/" + std::string(64, 'A') + ".vqk", 9h)};
  std::filesystem::create_symlink(folder_ / "notes.txt", folder_ / "aa" / (digest + ".vqk"));

  const Collected collected = collect(folder_, {.max_bytes = 0});
  EXPECT_EQ(collected.entries, 1);
  EXPECT_EQ(collected.leftovers, 3);
  for (const auto& gone : {old_temporary, damaged, old_lock}) {
    EXPECT_FALSE(std::filesystem::exists(gone)) << gone;
  }
  EXPECT_TRUE(std::filesystem::exists(new_temporary)) << "its writer may live";
  for (const auto& stranger : strangers) EXPECT_TRUE(std::filesystem::exists(stranger)) << stranger;

  stored(0s);
  const Collected cleared = clear_cache(folder_);
  EXPECT_EQ(cleared.entries, 1);
  EXPECT_EQ(cleared.leftovers, 0);
  EXPECT_TRUE(std::filesystem::exists(new_temporary)) << "its writer may live";
  for (const auto& stranger : strangers) EXPECT_TRUE(std::filesystem::exists(stranger)) << stranger;
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "aa" / (digest + ".vqk")));
  EXPECT_EQ(collect(folder_ / "missing", {.max_bytes = 0}).entries, 0);
}

TEST_F(CacheBounds, WhatStandsInThePlaceOfAFileIsNamedAndStays) {
  stored(0s);
  const auto named = [&](char digit) {
    const std::string digest(64, digit);
    std::filesystem::create_directories(folder_ / digest.substr(0, 2));
    return folder_ / digest.substr(0, 2) / (digest + ".vqk");
  };
  std::filesystem::create_directories(named('1') / "deeper");
  ASSERT_EQ(::mkfifo(named('2').c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", named('3'));
  publish_text(folder_ / "44", "no folder");
  const std::vector<std::filesystem::path> wrong{named('1'), named('2'), named('3'),
                                                 folder_ / "44"};
  const auto paths = [](const std::vector<CacheFault>& faults) {
    std::vector<std::filesystem::path> all;
    for (const CacheFault& fault : faults) all.push_back(fault.path);
    return all;
  };
  using ::testing::UnorderedElementsAreArray;
  const Listing listing = FolderLayer(folder_).list();
  EXPECT_EQ(listing.entries.size(), 1u);
  EXPECT_THAT(paths(listing.faults), UnorderedElementsAreArray(wrong));
  EXPECT_THAT(paths(collect(folder_, {}).faults), UnorderedElementsAreArray(wrong));
  const Collected cleared = clear_cache(folder_);
  EXPECT_EQ(cleared.entries, 1);
  EXPECT_THAT(paths(cleared.faults), UnorderedElementsAreArray(wrong));
  for (const auto& path : wrong)
    EXPECT_TRUE(std::filesystem::is_symlink(path) || std::filesystem::exists(path));
  const auto file = folder_ / "44";
  EXPECT_THAT(paths(collect(file, {}).faults), UnorderedElementsAreArray({file}));
  EXPECT_TRUE(collect(folder_ / "missing", {}).faults.empty());
}

TEST_F(CacheBounds, AHeldLockStays) {
  const auto file = FolderLayer(folder_).lock_of(key_.hex());
  auto held = std::make_unique<KeyLock>(file, std::chrono::milliseconds{0});
  ASSERT_TRUE(held->held());
  const auto free = aged("locks/" + std::string(64, 'b') + ".lock", 0s);
  make_older(file, 2h);
  EXPECT_EQ(collect(folder_, {}).leftovers, 0);
  EXPECT_EQ(clear_cache(folder_).leftovers, 1);
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(free));
}

TEST_F(CacheBounds, ALongLivedProcessKeepsTheBoundToo) {
  CacheOptions options;
  options.folder = folder_;
  const auto store = [&](ArtifactCache& cache, int i) {
    ArtifactKey key = key_;
    key.options.push_back(std::to_string(100 + i));
    EXPECT_TRUE(cache.store(key, artifact_));
  };
  ArtifactCache unbounded(options);
  store(unbounded, 0);
  options.max_bytes = 34 * collect(folder_, {}).kept_bytes;
  ArtifactCache cache(options);
  std::int64_t most = 0;
  for (int i = 1; i < 60; ++i) {
    store(cache, i);
    most = std::max(most, collect(folder_, {}).kept_entries);
  }
  EXPECT_GT(most, 34) << "not each store looks";
  EXPECT_LE(most, 34 + 3);
}

TEST_F(CacheBounds, TheFirstStoreKeepsTheBound) {
  const ArtifactKey old = stored(5h);
  const ArtifactKey young = stored(4h);
  CacheOptions options;
  options.folder = folder_;
  options.max_bytes = 2 * size_of(young);
  ArtifactCache cache(options);
  EXPECT_TRUE(there(old)) << "nothing happens before a store";
  ASSERT_TRUE(cache.store(key_, artifact_));
  EXPECT_FALSE(there(old));
  EXPECT_TRUE(there(young) && there(key_));
}

// Another process removes everything in a loop while this one stores and reads.
TEST_F(CacheBounds, AnEvictionHurtsNoReader) {
  artifact_.binary.resize(1 << 18, std::byte{7});
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) collect(folder_, {.max_bytes = 0});
  }
  ASSERT_GT(child, 0);
  ArtifactCache cache({.folder = folder_});
  for (int i = 0; i < 60; ++i) {
    EXPECT_TRUE(cache.store(key_, artifact_)) << cache.warning();
    const Lookup found = cache.look_up(key_);
    EXPECT_FALSE(found.damaged);
    if (found.artifact) {
      EXPECT_TRUE(test::same(*found.artifact, artifact_));
    }
  }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

// The leftovers of a writer that kill -9 ended must go. The writer is killed once its file is seen,
// which may come too late.
TEST_F(CacheBounds, LeftoversOfAKilledWriterAreFound) {
  artifact_.binary.resize(8 << 20, std::byte{7});
  const auto temporaries = [this] {
    std::vector<std::string> names;
    std::error_code gone;
    std::filesystem::directory_iterator files(path_of(key_).parent_path(), gone);
    for (; !gone && files != std::filesystem::directory_iterator(); files.increment(gone)) {
      const std::string name = files->path().string();
      if (name.find(".tmp-") != name.npos) names.push_back(name);
    }
    return names;
  };
  std::vector<std::string> left;
  for (int round = 0; round < 20 && left.empty(); ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ArtifactCache cache({.folder = folder_});
      for (;;) cache.store(key_, artifact_);
    }
    ASSERT_GT(child, 0);
    for (int i = 0; i < 20000 && temporaries().empty(); ++i) ::usleep(200);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    left = temporaries();
  }
  ASSERT_FALSE(left.empty()) << "no writer was killed while it wrote";
  for (const std::string& name : left) make_older(name, 2h);
  EXPECT_EQ(collect(folder_, {}).leftovers, static_cast<std::int64_t>(left.size()));
}

}  // namespace
}  // namespace vqgen

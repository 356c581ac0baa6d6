// The lock on a key: many processes compile once, and none depends on the lock.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "core/files/files.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

using namespace std::chrono_literals;

class CacheLock : public test::WithKernel {
 protected:
  // A compilation takes `time` and adds a byte to `compiled`, in whichever process it runs.
  void slow_down(std::chrono::milliseconds time) {
    source_.entries.resize(1);
    key_ = artifact_key(source_, backend_.compiler(source_));
    backend_.describe = [this, time](const KernelSource&, KernelResources&) {
      const int file = ::open(compiled_().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      [[maybe_unused]] const ssize_t wrote = ::write(file, "x", 1);
      ::close(file);
      std::this_thread::sleep_for(time);
    };
  }
  std::size_t compilations() const {
    return std::filesystem::exists(compiled_()) ? std::filesystem::file_size(compiled_()) : 0;
  }
  std::filesystem::path user() const { return folder_ / "user"; }
  std::filesystem::path lock_file() const { return FolderLayer(user()).lock_of(key_.hex()); }

 private:
  std::filesystem::path compiled_() const { return folder_ / "compiled"; }
};

TEST_F(CacheLock, SixteenProcessesOnOneColdKeyCompileAtMostTwice) {
  slow_down(200ms);
  int start[2];
  ASSERT_EQ(::pipe(start), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(start[1]);
      char unused = 0;
      [[maybe_unused]] const ssize_t got = ::read(start[0], &unused, 1);  // all have arrived
      ArtifactCache cache({.folder = user()});
      const Artifact mine = compile_cached(backend_, source_, &cache).artifact;
      ::_exit(mine.kernels.size() == 1 && cache.warning().empty() && cache.look_up(key_).artifact
                  ? 0
                  : 1);
    }
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  ::close(start[0]);
  ::close(start[1]);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_GE(compilations(), 1u);
  EXPECT_LE(compilations(), 2u);
  EXPECT_EQ(test::files_below(user()).size(), 1u) << "locks are gone";
}

TEST_F(CacheLock, ThreadsOfOneProcessCompileOnce) {
  slow_down(50ms);
  ArtifactCache cache({.folder = user()});
  std::atomic<int> hits = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { hits += compile_cached(backend_, source_, &cache).hit; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compilations(), 1u);
  EXPECT_EQ(hits, 3);
}

TEST_F(CacheLock, OneThatCannotBeHadCostsNothing) {
  std::filesystem::create_directories(user());
  publish_text(user() / "locks", "in the way");
  ArtifactCache cache({.folder = user()});
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_TRUE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_EQ(cache.warning(), "");
}

TEST_F(CacheLock, TheWaitIsBounded) {
  const KeyLock other(lock_file(), 0ms);
  ASSERT_TRUE(other.held());
  CacheOptions options;
  options.folder = user();
  options.lock_wait = 50ms;
  ArtifactCache cache(options);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, 50ms);
  EXPECT_LT(waited, 10s);
  EXPECT_TRUE(std::filesystem::exists(lock_file())) << "the other's lock";
}

TEST_F(CacheLock, IsNotTakenWhereNothingIsKept) {
  CacheOptions options;
  options.folder = user();
  options.max_bytes = 0;
  EXPECT_EQ(ArtifactCache(options).lock(key_), nullptr);
  EXPECT_FALSE(std::filesystem::exists(user()));
}

// The holder kept nothing, so a process that waited must not make the next wait for its
// compilation.
TEST_F(CacheLock, WhoWaitedForNothingCompilesUnlocked) {
  auto other = std::make_unique<KeyLock>(lock_file(), 0ms);
  ASSERT_TRUE(other->held());
  bool free = false;
  backend_.describe = [&](const KernelSource&, KernelResources&) {
    free = KeyLock(lock_file(), 0ms).held();
  };
  ArtifactCache cache({.folder = user()});
  std::thread waiting([&] { compile_cached(backend_, source_, &cache); });
  std::this_thread::sleep_for(100ms);
  other.reset();
  waiting.join();
  EXPECT_TRUE(free);
}

// A child that another thread starts inherits the open lock file while this process compiles.
TEST_F(CacheLock, IsFreeOnceReleasedThoughAChildHasItOpen) {
  auto held = std::make_unique<KeyLock>(lock_file(), 0ms);
  ASSERT_TRUE(held->held());
  const int same = ::open(lock_file().c_str(), O_RDWR | O_CLOEXEC);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  held.reset();
  EXPECT_EQ(::flock(same, LOCK_EX | LOCK_NB), 0);
  ::close(same);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(CacheLock, IsFreeOnceItsHolderIsKilled) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const KeyLock held(lock_file(), 0ms);
    [[maybe_unused]] const ssize_t wrote = ::write(ready[1], held.held() ? "y" : "n", 1);
    ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(KeyLock(lock_file(), 0ms).held());
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(KeyLock(lock_file(), 5s).held());
  EXPECT_FALSE(std::filesystem::exists(lock_file()));
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace vqgen

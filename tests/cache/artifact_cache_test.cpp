// Hits, misses, and everything that can happen to a file.
#include "runtime/cache/artifact_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/files/files.h"
#include "runtime/cache/artifact_file.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

using ::testing::HasSubstr;

class Cache : public test::WithKernel {
 protected:
  std::filesystem::path path_of(const ArtifactKey& key) const {
    return FolderLayer(folder_).path_of(key.hex());
  }
  // Writes `bytes` in place of the artifact, and expects a miss that moves them aside.
  void expect_miss_on(std::span<const std::byte> bytes, const std::string& what) {
    ArtifactCache cache({.folder = folder_});
    const auto path = path_of(key_);
    std::filesystem::create_directories(path.parent_path());
    publish_file(path, bytes);
    const Lookup missed = cache.look_up(key_);
    EXPECT_TRUE(!missed.artifact && missed.damaged) << what;
    EXPECT_FALSE(std::filesystem::exists(path)) << what;
    EXPECT_TRUE(std::filesystem::exists(path.string() + ".damaged")) << what;
  }
};

TEST_F(Cache, MissThenHitInThisAndTheNextProcess) {
  ArtifactCache cache({.folder = folder_ / "deep" / "er"});
  const CompileResult first = compile_cached(backend_, source_, &cache);
  EXPECT_FALSE(first.hit);
  const CompileResult second = compile_cached(backend_, source_, &cache);
  EXPECT_TRUE(second.hit);
  ArtifactCache again({.folder = folder_ / "deep" / "er"});
  const CompileResult third = compile_cached(backend_, source_, &again);
  EXPECT_TRUE(third.hit);
  EXPECT_TRUE(test::same(first.artifact, second.artifact));
  EXPECT_TRUE(test::same(first.artifact, third.artifact));
  EXPECT_EQ(backend_.compilations, 1);
  EXPECT_EQ(cache.warning(), "");

  source_.text += "int changed;\n";
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_EQ(backend_.compilations, 2);
}

TEST_F(Cache, NoneCompilesAlways) {
  EXPECT_FALSE(compile_cached(backend_, source_, nullptr).hit);
  EXPECT_FALSE(compile_cached(backend_, source_, nullptr).hit);
  EXPECT_EQ(backend_.compilations, 2);
}

// The compiler's file said 1.0, but the opened compiler says 2.0: its kernels have another key.
TEST_F(Cache, WhatCompiledNamesTheArtifact) {
  ArtifactCache cache({.folder = folder_});
  backend_.describe = [this](const KernelSource&, KernelResources&) {
    backend_.compiler_name = "counting 2.0";
  };
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_FALSE(cache.look_up(key_).artifact.has_value());
  EXPECT_TRUE(
      cache.look_up(artifact_key(source_, backend_.compiler(source_))).artifact.has_value());
}

// Each process starts with what the file says, and would otherwise compile forever.
TEST_F(Cache, WhatTheOpenedCompilerMadeIsFoundByTheNextProcess) {
  backend_.opened_name = "counting 2.0";
  backend_.describe = [this](const KernelSource&, KernelResources&) {
    backend_.compiler_name = "counting 2.0";
  };
  ArtifactCache cache({.folder = folder_});
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  backend_.compiler_name = "counting 1.0";
  ArtifactCache next({.folder = folder_});
  EXPECT_TRUE(compile_cached(backend_, source_, &next).hit);
  EXPECT_EQ(backend_.compilations, 1);
}

TEST_F(Cache, FindingLeavesTheDiskAsItIs) {
  const auto user = folder_ / "user";
  ArtifactCache cache({.folder = user});
  EXPECT_FALSE(find_cached(backend_, source_, nullptr).has_value());
  EXPECT_FALSE(find_cached(backend_, source_, &cache).has_value());
  EXPECT_FALSE(std::filesystem::exists(user));
  compile_cached(backend_, source_, &cache);
  const KeyLock other(FolderLayer(user).lock_of(key_.hex()), std::chrono::milliseconds{0});
  ASSERT_TRUE(other.held());
  const auto found = find_cached(backend_, source_, &cache);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->hit && test::same(found->artifact, artifact_));
  EXPECT_EQ(found->layer, user.string());
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours{9};
  std::filesystem::last_write_time(FolderLayer(user).path_of(key_.hex()), old);
  EXPECT_TRUE(find_cached(backend_, source_, &cache).has_value());
  EXPECT_EQ(std::filesystem::last_write_time(FolderLayer(user).path_of(key_.hex())), old);
  publish_text(FolderLayer(user).path_of(key_.hex()), "rubbish");
  EXPECT_FALSE(find_cached(backend_, source_, &cache).has_value());
  EXPECT_EQ(read_text(FolderLayer(user).path_of(key_.hex())), "rubbish");
  EXPECT_EQ(backend_.compilations, 1);
}

TEST_F(Cache, WhoMayNotCompileWaitsForNobodyAndMakesNoFolder) {
  const std::filesystem::path user = folder_ / "user";
  ArtifactCache cache({.folder = user});
  backend_.may = false;
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_FALSE(std::filesystem::exists(user));
  backend_.may = true;
  compile_cached(backend_, source_, &cache);
  backend_.may = false;
  EXPECT_TRUE(compile_cached(backend_, source_, &cache).hit);
}

TEST_F(Cache, EmptyBinaryAndNoEntriesSurvive) {
  const ArtifactKey bare{"", "", "", {}, {}};
  ArtifactCache cache({.folder = folder_});
  ASSERT_TRUE(cache.store(bare, Artifact{}));
  const auto found = cache.look_up(bare).artifact;
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(test::same(*found, Artifact{}));
}

TEST_F(Cache, TruncatedFilesAreMisses) {
  const auto bytes = encode_artifact(key_, artifact_);
  ASSERT_TRUE(dequantize_artifact(bytes, key_).has_value());
  for (std::size_t quarter = 0; quarter < 4; ++quarter) {
    expect_miss_on(std::span(bytes).first(bytes.size() * quarter / 4),
                   "quarter " + std::to_string(quarter));
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(dequantize_artifact(std::span(bytes).first(size), key_).has_value()) << size;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  expect_miss_on(longer, "a byte too many");
}

TEST_F(Cache, FlippedBitsAreMisses) {
  const auto bytes = encode_artifact(key_, artifact_);
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 5) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(dequantize_artifact(flipped, key_).has_value()) << bit;
  }
  auto flipped = bytes;
  flipped[bytes.size() / 2] ^= std::byte{16};
  expect_miss_on(flipped, "in the binary");
}

// Re-signs a file after `change`, so that only its content is wrong.
template <class Change>
std::vector<std::byte> forged(std::vector<std::byte> bytes, Change&& change) {
  bytes.resize(bytes.size() - 64);
  change(bytes);
  const std::string trailer = sha256_hex(bytes);
  for (const char c : trailer) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

TEST_F(Cache, LyingFilesAreMisses) {
  const auto bytes = encode_artifact(key_, artifact_);
  const auto same = forged(bytes, [](auto&) {});
  ASSERT_EQ(same, bytes);
  for (std::size_t at = 0; at < 28; ++at) {  // magic, schema, manifest size, the manifest's start
    for (const std::byte value : {std::byte{0}, std::byte{0x7f}, std::byte{0xff}}) {
      const auto lie = forged(bytes, [&](auto& body) { body[at] = value; });
      EXPECT_EQ(dequantize_artifact(lie, key_).has_value(), lie == bytes) << at;
    }
  }
  expect_miss_on(forged(bytes, [](auto& body) { body[12] = std::byte{0xff}; }), "manifest size");
  expect_miss_on(forged(bytes, [](auto& body) { body.resize(3); }), "only a trailer");

  ArtifactKey other = key_;
  other.options.push_back("-G");
  expect_miss_on(encode_artifact(other, artifact_), "another key's artifact");
  Artifact renamed = artifact_;
  renamed.kernels[0].name = "someone";
  expect_miss_on(encode_artifact(key_, renamed), "resources of other kernels");
  Artifact fewer = artifact_;
  fewer.kernels.pop_back();
  expect_miss_on(encode_artifact(key_, fewer), "too few kernels");
}

TEST_F(Cache, DamagedFileIsReplacedByTheNextCompilation) {
  ArtifactCache cache({.folder = folder_});
  compile_cached(backend_, source_, &cache);
  publish_text(path_of(key_), "rubbish");
  EXPECT_TRUE(cache.peek(key_).damaged);
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_TRUE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_FALSE(cache.peek(key_).damaged);
}

TEST_F(Cache, FolderInPlaceOfTheFileIsAMiss) {
  ArtifactCache cache({.folder = folder_});
  std::filesystem::create_directories(path_of(key_));
  EXPECT_FALSE(cache.look_up(key_).artifact.has_value());
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_NE(cache.warning(), "");
}

TEST_F(Cache, UnwritableFolderWarnsOnceAndGoesOn) {
  publish_text(folder_ / "file", "");
  ArtifactCache cache({.folder = folder_ / "file" / "cache"});
  EXPECT_EQ(cache.warning(), "");
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  const std::string warning = cache.warning();
  EXPECT_THAT(warning, HasSubstr((folder_ / "file").string()));
  EXPECT_THAT(warning, HasSubstr("VQGEN_CACHE_DIR"));
  source_.text += ' ';
  const CompileResult result = compile_cached(backend_, source_, &cache);
  EXPECT_FALSE(result.hit);
  EXPECT_TRUE(test::same(result.artifact, backend_.compile(source_)));
  EXPECT_EQ(cache.warning(), warning);
}

TEST_F(Cache, AFailureThatPassesIsNotForLife) {
  publish_text(folder_ / "file", "");
  ArtifactCache cache({.folder = folder_ / "file" / "cache"});
  EXPECT_FALSE(cache.store(key_, artifact_));
  std::filesystem::remove(folder_ / "file");
  EXPECT_TRUE(cache.store(key_, artifact_));
  const std::string warning = cache.warning();
  std::filesystem::remove_all(folder_ / "file");
  EXPECT_TRUE(cache.store(key_, artifact_)) << "folders are made again";
  EXPECT_EQ(cache.warning(), warning);
}

TEST_F(Cache, ACompilerWithoutUtf8IsKept) {
  backend_.compiler_name = "g\xff++ 1.0";
  ArtifactCache cache({.folder = folder_});
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_TRUE(compile_cached(backend_, source_, &cache).hit);
  EXPECT_EQ(cache.warning(), "");
  key_.arch = "\xff";
  EXPECT_TRUE(cache.store(key_, artifact_));
}

TEST_F(Cache, WhatCannotBeReadIsNoDamage) {
  ArtifactCache cache({.folder = folder_});
  const auto path = path_of(key_);
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::create_symlink(path.filename(), path);  // ELOOP
  EXPECT_TRUE(FolderLayer(folder_).read(key_.hex())->unreadable);
  const Lookup missed = cache.look_up(key_);
  EXPECT_FALSE(missed.artifact || missed.damaged);
  EXPECT_TRUE(std::filesystem::is_symlink(path));
}

TEST_F(Cache, OnlyTheFileThatWasReadIsSetAside) {
  ArtifactCache cache({.folder = folder_});
  const FolderLayer layer(folder_);
  const auto path = path_of(key_);
  std::filesystem::create_directories(path.parent_path());
  publish_text(path, "rubbish");
  const auto read = layer.read(key_.hex());
  ASSERT_TRUE(cache.store(key_, artifact_));  // another process meanwhile
  layer.set_aside(key_.hex(), read->stamp);
  EXPECT_TRUE(cache.look_up(key_).artifact.has_value());
  layer.set_aside(key_.hex(), layer.read(key_.hex())->stamp);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Cache, ThreadsOnOneKey) {
  ArtifactCache cache({.folder = folder_});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const bool stored = cache.store(key_, artifact_);
        const Lookup found = cache.look_up(key_);
        const bool right = found.artifact && test::same(*found.artifact, artifact_);
        if (!stored || !right || found.damaged) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Every file of the folder except the artifact itself.
std::vector<std::string> strays(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() != ".vqk") {
      names.push_back(entry.path().string());
    }
  }
  return names;
}

TEST_F(Cache, EightProcessesOnOneColdKey) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = true;
      for (int round = 0; round < 10; ++round) {
        ArtifactCache cache({.folder = folder_, .explain_misses = true});
        const CompileResult made = compile_cached(backend_, source_, &cache);
        const bool stored = cache.store(key_, artifact_);
        const Lookup found = cache.look_up(key_);
        good = good && test::same(made.artifact, artifact_) && made.why_missed != "damaged" &&
               stored && found.artifact && !found.damaged && cache.warning().empty();
      }
      ::_exit(good ? 0 : 1);
    }
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  ArtifactCache cache({.folder = folder_});
  EXPECT_TRUE(cache.look_up(key_).artifact.has_value());
  EXPECT_THAT(strays(folder_), ::testing::IsEmpty());
}

// A writer killed at any moment leaves the old file, the new one, or none; never a broken one.
TEST_F(Cache, KilledWriterLeavesNoBrokenFile) {
  artifact_.binary.resize(1 << 20, std::byte{42});
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ArtifactCache cache({.folder = folder_});
      for (;;) cache.store(key_, artifact_);
    }
    ASSERT_GT(child, 0);
    ::usleep(static_cast<useconds_t>(2000 + 1700 * round));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ArtifactCache cache({.folder = folder_});
    EXPECT_FALSE(cache.look_up(key_).damaged);
  }
}

}  // namespace
}  // namespace vqgen

// The order of layers, the places of the cache, and a cache that cannot be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/files/files.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/pack.h"
#include "tests/cache/fixtures.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CacheLayers : public test::WithKernel {
 protected:
  // A folder or a pack that holds the kernel.
  std::filesystem::path filled(const std::string& name) {
    ArtifactCache({.folder = folder_ / name}).store(key_, artifact_);
    return folder_ / name;
  }
  std::filesystem::path packed(const std::string& name) {
    publish_file(folder_ / name, encode_pack({{key_.hex(), encode_artifact(key_, artifact_)}}));
    return folder_ / name;
  }
};

TEST_F(CacheLayers, AreAskedInOrderAndCounted) {
  const auto pack = packed("a.vqpack");
  const auto shared = filled("shared");
  const auto user = filled("user");
  const auto layer_with = [&](std::vector<std::filesystem::path> read_only) {
    ArtifactCache cache({.read_only = std::move(read_only), .folder = user});
    const Lookup found = cache.look_up(key_);
    EXPECT_TRUE(found.artifact && test::same(*found.artifact, artifact_));
    EXPECT_EQ(cache.warning(), "");
    return found.layer;
  };
  EXPECT_EQ(layer_with({pack, shared}), pack.string());
  EXPECT_EQ(layer_with({shared, pack}), shared.string());
  EXPECT_EQ(layer_with({}), user.string());
  EXPECT_EQ(layer_with({folder_}), user.string());
}

TEST_F(CacheLayers, AStoreGoesToTheUsersFolderAlone) {
  const auto shared = filled("shared");
  const auto before = test::files_below(shared);
  ArtifactCache cache({.read_only = {shared}, .folder = folder_ / "user"});
  source_.text += ' ';
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  const CompileResult again = compile_cached(backend_, source_, &cache);
  EXPECT_TRUE(again.hit);
  EXPECT_EQ(again.layer, (folder_ / "user").string());
  EXPECT_EQ(test::files_below(shared), before);
}

TEST_F(CacheLayers, DamageInOneIsPassedOverAndLeftAlone) {
  const auto shared = filled("shared");
  const auto file = FolderLayer(shared).path_of(key_.hex());
  publish_text(file, "rubbish");
  const auto pack = packed("a.vqpack");
  ArtifactCache cache({.read_only = {shared, pack}, .folder = folder_ / "user"});
  const Lookup found = cache.look_up(key_);
  EXPECT_EQ(found.layer, pack.string());
  EXPECT_TRUE(found.damaged);
  EXPECT_TRUE(found.artifact.has_value());
  EXPECT_EQ(read_text(file), "rubbish");
}

TEST_F(CacheLayers, OneThatCannotBeOpenedIsAWarning) {
  publish_text(folder_ / "no.vqpack",
               "this is no pack, though it is long enough to be one......."
               "..................................................");
  ArtifactCache cache(
      {.read_only = {folder_ / "no.vqpack", folder_ / "missing"}, .folder = filled("user")});
  EXPECT_THAT(cache.warning(), AllOf(HasSubstr("no.vqpack: is no pack"), HasSubstr("missing")));
  EXPECT_TRUE(cache.look_up(key_).artifact.has_value());
}

TEST_F(CacheLayers, MemoryServesWhereThereIsNoFolder) {
  ArtifactCache cache(CacheOptions{});
  EXPECT_FALSE(compile_cached(backend_, source_, &cache).hit);
  const CompileResult second = compile_cached(backend_, source_, &cache);
  EXPECT_TRUE(second.hit);
  EXPECT_EQ(second.layer, "memory");
  EXPECT_EQ(backend_.compilations, 1);
}

TEST_F(CacheLayers, AMovedFolderAndPackStillHit) {
  filled("here");
  packed("here.vqpack");
  std::filesystem::create_directories(folder_ / "far");
  std::filesystem::rename(folder_ / "here", folder_ / "far" / "there");
  std::filesystem::rename(folder_ / "here.vqpack", folder_ / "far" / "there.vqpack");
  EXPECT_TRUE(
      ArtifactCache({.folder = folder_ / "far" / "there"}).look_up(key_).artifact.has_value());
  ArtifactCache pack({.read_only = {folder_ / "far" / "there.vqpack"}});
  EXPECT_TRUE(pack.look_up(key_).artifact.has_value());
}

// Runs `body` in a child, which must not write to the test's own files, and expects true of it.
template <class Body>
void expect_in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The cache goes on in memory, with one warning, and leaves nothing half-written.
bool goes_on_in_memory(const Backend& backend, const KernelSource& source, ArtifactCache& cache) {
  const CompileResult first = compile_cached(backend, source, &cache);
  const std::string warning = cache.warning();
  const CompileResult second = compile_cached(backend, source, &cache);
  return !first.hit && second.hit && second.layer == "memory" && !warning.empty() &&
         cache.warning() == warning && test::same(first.artifact, second.artifact);
}

// A limit on the size of files makes writes fail half-way, as on a full disk.
TEST_F(CacheLayers, AFullDiskDemotesToMemory) {
  const auto user = folder_ / "user";
  expect_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{512, 512};
    ArtifactCache cache({.folder = user});
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 && goes_on_in_memory(backend_, source_, cache);
  });
  EXPECT_THAT(test::files_below(user), IsEmpty());
}

TEST_F(CacheLayers, AReadOnlyFolderDemotesToMemory) {
  const auto user = filled("user");
  std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(user)) {
    std::filesystem::permissions(entry.path(), std::filesystem::perms(0555));
  }
  std::filesystem::permissions(user, std::filesystem::perms(0555));
  const auto before = test::files_below(user);
  expect_in_child([&] {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return false;
    ArtifactCache cache({.folder = user});
    const bool hit = cache.look_up(key_).artifact.has_value();
    source_.text += ' ';
    return hit && goes_on_in_memory(backend_, source_, cache);
  });
  EXPECT_EQ(test::files_below(user), before);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(user)) {
    std::filesystem::permissions(entry.path(), std::filesystem::perms(0755));
  }
  std::filesystem::permissions(user, std::filesystem::perms(0755));
}

TEST_F(CacheLayers, WithoutAHomeAPrivateTemporaryFolderServes) {
  const CacheOptions options = cache_options({.temporary = folder_.string()});
  const auto own = folder_ / ("vqgen-" + std::to_string(::geteuid()));
  EXPECT_EQ(options.folder, own);
  EXPECT_EQ(options.warning, "");
  struct stat status {};
  ASSERT_EQ(::stat(own.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(cache_options({.temporary = folder_.string()}).folder, own) << "when it is there";
}

TEST_F(CacheLayers, ATemporaryFolderThatOthersCanReachIsRefused) {
  const auto own = folder_ / ("vqgen-" + std::to_string(::geteuid()));
  const auto expect_refused = [&](const char* what) {
    const CacheOptions options = cache_options({.temporary = folder_.string()});
    EXPECT_EQ(options.folder, std::nullopt) << what;
    EXPECT_THAT(options.warning, HasSubstr("memory")) << what;
    std::filesystem::remove_all(own);
  };
  std::filesystem::create_directories(own);
  std::filesystem::permissions(own, std::filesystem::perms(0755));
  expect_refused("others may look");
  std::filesystem::create_directories(own);
  std::filesystem::permissions(own, std::filesystem::perms(0770));
  expect_refused("a group may write");
  std::filesystem::create_directories(folder_ / "elsewhere");
  std::filesystem::permissions(folder_ / "elsewhere", std::filesystem::perms(0700));
  std::filesystem::create_directory_symlink(folder_ / "elsewhere", own);
  expect_refused("a link");
  publish_text(own, "");
  expect_refused("a file");
  if (::geteuid() != 0) return;
  std::filesystem::create_directories(own);
  std::filesystem::permissions(own, std::filesystem::perms(0700));
  ASSERT_EQ(::chown(own.c_str(), 65534, 65534), 0);
  expect_refused("another's");
}

TEST_F(CacheLayers, ATemporaryFolderInWhichOthersCanRenameIsRefused) {
  std::filesystem::permissions(folder_, std::filesystem::perms(0777));
  EXPECT_EQ(private_folder(folder_), std::nullopt);
  std::filesystem::permissions(folder_, std::filesystem::perms(0770));
  EXPECT_EQ(private_folder(folder_), std::nullopt);
  EXPECT_THAT(test::files_below(folder_), IsEmpty());
  ASSERT_EQ(::chmod(folder_.c_str(), 01777), 0);
  EXPECT_NE(private_folder(folder_), std::nullopt);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
  EXPECT_EQ(private_folder(folder_), std::nullopt) << "another's";
}

TEST_F(CacheLayers, AnEmptyOrRelativeTemporaryFolderIsTmp) {
  const auto in_tmp = private_folder("/tmp");
  for (const char* text : {"", "relative", "./tmp"}) {
    EXPECT_EQ(cache_options({.temporary = text}).folder, in_tmp) << text;
  }
}

TEST(CachePlaces, FollowTheEnvironment) {
  using Path = std::filesystem::path;
  const CacheOptions options = cache_options({.home = "/h",
                                              .vqgen_cache_path = ":/a:b::/c.vqpack:",
                                              .vqgen_cache_max_bytes = "123",
                                              .temporary = "/nonexistent"});
  EXPECT_EQ(options.folder, Path("/h/.cache/vqgen"));
  EXPECT_EQ(options.read_only, (std::vector<Path>{"/a", "b", "/c.vqpack"}));
  EXPECT_EQ(options.max_bytes, 123u);
  EXPECT_EQ(cache_options({}).max_bytes, kDefaultCacheBytes);
  EXPECT_THAT(cache_options({.temporary = "/nonexistent"}).warning, HasSubstr("VQGEN_CACHE_DIR"));
  for (const char* wrong : {"-1", "2G", "1e9", " 1", "99999999999999999999"}) {
    EXPECT_THAT(message_of([&] { cache_options({.vqgen_cache_max_bytes = wrong}); }),
                AllOf(HasSubstr("VQGEN_CACHE_MAX_BYTES"), HasSubstr(wrong)));
  }
}

}  // namespace
}  // namespace vqgen

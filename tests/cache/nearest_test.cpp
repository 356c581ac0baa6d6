// Changes every field of a key, through for_each_field so that new fields are included: the stored
// kernel is then not found, and the reason names the field.
#include "runtime/cache/artifact_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files/files.h"
#include "tests/cache/fixtures.h"

namespace vqgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void perturb(std::string& value) { value += "x"; }
void perturb(std::vector<std::string>& values) { values.emplace_back("x"); }

class CacheNearest : public test::WithKernel {
 protected:
  CacheNearest() { options_.explain_misses = true; }
  std::string why(const ArtifactKey& key) {
    options_.folder = folder_;
    ArtifactCache cache(options_);
    const Lookup missed = cache.look_up(key);
    EXPECT_FALSE(missed.artifact.has_value());
    return cache.why_missed(key, missed);
  }
  CacheOptions options_;
};

TEST_F(CacheNearest, EachFieldIsAnotherKeyAndIsNamed) {
  ArtifactCache({.folder = folder_}).store(key_, artifact_);
  int fields = 0;
  for_each_field<ArtifactKey>([&](const auto& field) {
    ++fields;
    ArtifactKey other = key_;
    perturb(other.*field.member);
    EXPECT_NE(other.hex(), key_.hex()) << field.name;
    EXPECT_THAT(why(other), AllOf(StartsWith(std::string(field.name) + " differs: '"),
                                  HasSubstr("is stored"), HasSubstr("x' is wanted")));
    EXPECT_EQ(differing_fields(key_, other), std::vector<std::string>{field.name});
  });
  EXPECT_EQ(fields, 5);
}

TEST_F(CacheNearest, TheEntryWithTheFewestDifferencesIsTaken) {
  const auto store = [&](const ArtifactKey& key) {
    ArtifactCache({.folder = folder_}).store(key, artifact_);
  };
  ArtifactKey far = key_;
  far.arch = "sm_80";
  far.compiler = "old";
  store(far);
  EXPECT_THAT(why(key_), AllOf(StartsWith("arch differs: 'sm_80' is stored"),
                               ::testing::EndsWith("; compiler too")));
  ArtifactKey near = key_;
  near.compiler = "old";
  store(near);
  EXPECT_THAT(why(key_), StartsWith("compiler differs: 'old' is stored, 'counting 1.0'"));
}

TEST_F(CacheNearest, StrangersAndDamageAreOtherReasons) {
  EXPECT_EQ(why(key_), "no entry");
  ArtifactKey stranger = key_;
  stranger.text_sha256 = "another";
  stranger.entries = {"another"};
  Artifact artifact = artifact_;
  artifact.kernels.resize(1);
  artifact.kernels[0].name = "another";
  ArtifactCache({.folder = folder_}).store(stranger, artifact);
  EXPECT_EQ(why(key_), "no entry");
  publish_text(FolderLayer(folder_).path_of(stranger.hex()), "VQGENART rubbish");
  EXPECT_EQ(why(key_), "no entry");
  ArtifactCache({.folder = folder_}).store(key_, artifact_);
  publish_text(FolderLayer(folder_).path_of(key_.hex()), "rubbish");
  EXPECT_EQ(why(key_), "damaged");
}

TEST_F(CacheNearest, IsAskedForAndReportedByTheCompilation) {
  ArtifactCache plain({.folder = folder_});
  EXPECT_EQ(compile_cached(backend_, source_, &plain).why_missed, "");
  source_.arch = "sm_80";
  options_.folder = folder_;
  ArtifactCache cache(options_);
  const CompileResult result = compile_cached(backend_, source_, &cache);
  EXPECT_THAT(result.why_missed, StartsWith("arch differs: 'sm_90a' is stored, 'sm_80' is wanted"));
  EXPECT_EQ(compile_cached(backend_, source_, &cache).why_missed, "");
}

}  // namespace
}  // namespace vqgen

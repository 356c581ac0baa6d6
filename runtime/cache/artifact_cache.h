// Compiled kernels on disk, found by the digest of what made them. Correct without locks: files are
// published by rename, verified when read, and a file that is not what it should be is a miss.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_key.h"

namespace vqgen {

// What a cache did since it was made.
struct CacheCounts {
  int hits = 0;
  int misses = 0;   // damaged files among them
  int damaged = 0;  // files renamed to NAME.damaged
  int stored = 0;
  bool operator==(const CacheCounts&) const = default;
};

// Thread-safe, and safe beside other processes on the same folder.
class ArtifactCache {
 public:
  // Touches nothing yet; the folder is made by the first store.
  explicit ArtifactCache(std::filesystem::path folder);

  // The artifact, verified; nullopt where there is none. Never throws for the state of the disk.
  std::optional<Artifact> find(const ArtifactKey& key);

  // False where the folder cannot be written: then warning() says why, and later calls do nothing.
  bool store(const ArtifactKey& key, const Artifact& artifact);

  // Where the artifact of `key` stands, or would.
  std::filesystem::path path_of(const ArtifactKey& key) const;

  // One line for the user about why nothing is stored any more; empty while all is well.
  std::string warning() const;
  CacheCounts counts() const;

 private:
  const std::filesystem::path folder_;
  mutable std::mutex mutex_;  // guards what follows
  std::string warning_;
  CacheCounts counts_;
};

struct CompileResult {
  Artifact artifact;
  bool hit = false;  // came from the cache
};

// The artifact of `source`, from `cache` or compiled and stored. A null cache compiles always.
// Thread-safe. Throws what the backend's compiler() and compile() throw.
CompileResult compile_cached(const Backend& backend, const KernelSource& source,
                             ArtifactCache* cache);

// The environment variables that decide where the cache stands, as the caller read them.
struct CacheEnvironment {
  std::optional<std::string> vqgen_cache_dir;  // VQGEN_CACHE_DIR
  std::optional<std::string> xdg_cache_home;   // XDG_CACHE_HOME
  std::optional<std::string> home;             // HOME
};

// VQGEN_CACHE_DIR, else XDG_CACHE_HOME/vqgen, else HOME/.cache/vqgen; nullopt without any of them.
// Empty values count as unset, and relative ones too but for VQGEN_CACHE_DIR (XDG's rule).
std::optional<std::filesystem::path> default_cache_dir(const CacheEnvironment& environment);

}  // namespace vqgen

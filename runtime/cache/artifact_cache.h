// Compiled kernels, found by the digest of what made them, in layers: read-only folders and packs,
// then the user's folder, or memory if that cannot be written. Correct without locks: files are
// published by rename and verified when read, and a wrong file is a miss.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/folder_layer.h"
#include "runtime/cache/places.h"

namespace vqgen {

struct Lookup {
  std::optional<Artifact> artifact;
  std::string layer;     // on a hit: the folder or the pack, or "memory"
  bool damaged = false;  // a layer had it damaged; the user's folder renamed it NAME.damaged
};

// Lets one process compile a key that several miss; a process that cannot get the lock goes on
// without it. The lock is an flock on `file`, so the kernel frees it with the process. The holder
// removes the file, also on an interruption (core/json/leftovers.h).
class KeyLock {
 public:
  // Waits for `longest` at most. The lock is not held if the file cannot be made or locked, or if
  // the wait is over.
  KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest);
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;
  ~KeyLock();

  bool held() const { return file_ >= 0; }
  // True if another process or thread held the lock first.
  bool waited() const { return waited_; }

 private:
  int attempt();  // 0 if the lock is held, else errno

  std::filesystem::path path_;
  int file_ = -1;
  bool named_ = false;  // whether the held file is still the one of that name
  bool waited_ = false;
};

// Thread-safe, also when other processes use the same folder.
class ArtifactCache {
 public:
  // Writes nothing yet; the first store makes the folder. Read-only layers that cannot be opened or
  // are not trusted (places.h) are left out, and warning() says so.
  explicit ArtifactCache(CacheOptions options);

  // The verified artifact of the first layer that has it undamaged. Never throws for the disk's
  // state.
  Lookup look_up(const ArtifactKey& key) { return search(key, true); }
  // Like look_up(), but leaves the disk as it is: it stamps no use and sets no damage aside.
  Lookup peek(const ArtifactKey& key) { return search(key, false); }

  // Returns false if the folder refuses it: then memory keeps it, up to 256 MiB, and warning() says
  // why, once. A read-only, forbidden or full folder is not tried again. The first store, and one
  // per sixteenth of the size bound, brings the folder below the bound.
  bool store(const ArtifactKey& key, const Artifact& artifact);

  // Waits until other processes that compile `key` are done or the wait is over. Returns null if
  // there is no folder to lock in, or if nothing is kept.
  std::unique_ptr<KeyLock> lock(const ArtifactKey& key) const;

  // Why look_up() missed: "damaged", "no entry", or how the nearest entry differs. Empty unless the
  // options ask for it.
  std::string why_missed(const ArtifactKey& key, const Lookup& missed) const;

  // The layers in the order of look-up; the user's folder, if there is one, comes last.
  std::span<const std::unique_ptr<ArtifactLayer>> layers() const { return layers_; }

  // One line for the user about what does not work; empty while all is well.
  std::string warning() const;

 private:
  Lookup search(const ArtifactKey& key, bool keeps_order);
  // Counts a store of so many bytes and returns whether the folder is due for collection.
  bool counts_as_due(std::size_t bytes);
  void keep_in_memory(const std::string& digest, const Artifact& artifact);
  void warn(const std::string& text);

  const CacheOptions options_;
  std::vector<std::unique_ptr<ArtifactLayer>> layers_;
  const FolderLayer* folder_ = nullptr;  // the last of layers_, or null
  mutable std::mutex mutex_;             // guards what follows
  bool unwritable_ = false;
  bool warned_ = false;  // about a store that failed
  bool collected_ = false;
  std::uint64_t uncollected_bytes_ = 0;
  std::string warning_;
  std::map<std::string, Artifact> memory_;
  std::size_t memory_bytes_ = 0;
};

struct CompileResult {
  Artifact artifact;
  bool hit = false;             // came from the cache
  std::string layer = {};       // on a hit, as in Lookup
  std::string why_missed = {};  // on a miss, as ArtifactCache::why_missed() says
};

// The artifact of `source`, from `cache` (null: none) or compiled and stored. A miss is looked up
// again under the opened compiler's identity. If several processes miss a key at once, one compiles
// and the others wait, within bounds. Thread-safe. Throws what the backend's functions throw.
CompileResult compile_cached(const Backend& backend, const KernelSource& source,
                             ArtifactCache* cache);

// Only looks up, as compile_cached() does: nothing is opened, waited for or changed. Returns
// nullopt on a miss or for a null cache. Thread-safe. Throws what the backend's compiler() throws.
std::optional<CompileResult> find_cached(const Backend& backend, const KernelSource& source,
                                         ArtifactCache* cache);

// Why a kernel is not in the cache: the stored one that is most like it, and what differs.
struct Nearest {
  std::string layer;
  std::string digest;
  ArtifactKey key;  // as the entry says; not verified
};

// The fields of the key in which the two differ ("arch", "options", ...), in the key's order.
std::vector<std::string> differing_fields(const ArtifactKey& stored, const ArtifactKey& wanted);

// Among the entries with the same text or kernel names, the one with the most equal fields. Ties go
// to the first layer, then to the first digest. Reads the front of at most kMaxPeeks entries per
// layer.
inline constexpr std::size_t kMaxPeeks = 4096;
std::optional<Nearest> nearest_entry(std::span<const std::unique_ptr<ArtifactLayer>> layers,
                                     const ArtifactKey& wanted);

// "no entry", or how the nearest entry differs: "compiler differs: 'nvrtc 12.4 ...' is stored,
// 'nvrtc 13.0 ...' is wanted". It gives one field in full and names the others, the text's digest
// last.
std::string miss_reason(const std::optional<Nearest>& nearest, const ArtifactKey& wanted);

}  // namespace vqgen

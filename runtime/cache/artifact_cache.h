// Compiled kernels, found by the digest of what made them, in layers: read-only folders and packs,
// then the user's folder, then memory where that cannot be written. Correct without locks: files
// are published by rename, verified when read, and a file that is not what it should be is a miss.
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
  std::string layer;     // of a hit: the folder or the pack, or "memory"
  bool damaged = false;  // some layer had it, but not whole; the user's renamed it NAME.damaged
};

// A lock on one key, so that processes which miss it at once compile it once. It only saves work:
// who cannot have it goes on without.
//
// Held while the object lives, by flock on `file`: the kernel frees it with the process, however
// that ends. The holder removes the file, in an interruption too (core/json/leftovers.h). Threads
// exclude each other as processes do.
class KeyLock {
 public:
  // Waits for `longest` at most. Not held where the file cannot be made or locked, or the wait is
  // over.
  KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest);
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;
  ~KeyLock();

  bool held() const { return file_ >= 0; }
  // Whether another held it first.
  bool waited() const { return waited_; }

 private:
  int attempt();  // 0 where the lock is had, else errno

  std::filesystem::path path_;
  int file_ = -1;
  bool named_ = false;  // whether the file that is held is the one of that name
  bool waited_ = false;
};

// Thread-safe, and safe beside other processes on the same folder.
class ArtifactCache {
 public:
  // Writes nothing yet; the folder is made by the first store. What cannot be opened of the
  // read-only layers, and what is not trusted (trust.h), is left out, and warning() says so.
  explicit ArtifactCache(CacheOptions options);

  // The artifact, verified, of the first layer that has it whole. Never throws for the disk's
  // state.
  Lookup look_up(const ArtifactKey& key) { return search(key, true); }
  // As look_up(), but the disk stays as it is: no use is stamped, and no damage is set aside.
  Lookup peek(const ArtifactKey& key) { return search(key, false); }

  // False where the folder does not take it: then memory keeps it, some 256 MiB in all, and
  // warning() says why, once. A folder that is read-only, forbidden or full is not tried again. The
  // first store of a cache, and one after each sixteenth of the bound, brings the folder below it.
  bool store(const ArtifactKey& key, const Artifact& artifact);

  // Until others that compile `key` are done or the wait is over; null where there is nothing to
  // lock in, or nothing is kept.
  std::unique_ptr<KeyLock> lock(const ArtifactKey& key) const;

  // Why look_up() missed: "damaged", "no entry", or how the nearest entry differs. Empty unless the
  // options ask for it.
  std::string why_missed(const ArtifactKey& key, const Lookup& missed) const;

  // In the order they are asked; the user's folder is the last, where there is one.
  std::span<const std::unique_ptr<ArtifactLayer>> layers() const { return layers_; }

  // One line for the user about what does not work; empty while all is well.
  std::string warning() const;

 private:
  Lookup search(const ArtifactKey& key, bool keeps_order);
  // Counts a store of so many bytes, and tells whether the folder is due to be collected.
  bool counts_as_due(std::size_t bytes);
  void keep_in_memory(const std::string& digest, const Artifact& artifact);
  void warn(const std::string& text);

  const CacheOptions options_;
  std::vector<std::unique_ptr<ArtifactLayer>> layers_;
  const FolderLayer* folder_ = nullptr;  // the last of layers_, or null
  mutable std::mutex mutex_;             // guards what follows
  bool unwritable_ = false;
  bool warned_ = false;  // of a store that failed
  bool collected_ = false;
  std::uint64_t uncollected_bytes_ = 0;
  std::string warning_;
  std::map<std::string, Artifact> memory_;
  std::size_t memory_bytes_ = 0;
};

struct CompileResult {
  Artifact artifact;
  bool hit = false;             // came from the cache
  std::string layer = {};       // of a hit, as in Lookup
  std::string why_missed = {};  // of a miss, as ArtifactCache::why_missed() says
};

// The artifact of `source`, from `cache` or compiled and stored. A null cache compiles always.
// What the backend tells of its compiler unopened finds hits alone: before a miss is compiled, it
// is looked up by the opened compiler too. Of processes that miss one key at once, one compiles and
// the others wait for it, within bounds. Thread-safe. Throws what the backend's compiler(),
// opened_compiler() and compile() throw.
CompileResult compile_cached(const Backend& backend, const KernelSource& source,
                             ArtifactCache* cache);

// The look-up of compile_cached() alone: nothing is opened, waited for or changed.
// nullopt on a miss, and of a null cache. Thread-safe. Throws what the backend's compiler() throws.
std::optional<CompileResult> find_cached(const Backend& backend, const KernelSource& source,
                                         ArtifactCache* cache);

// Why a kernel is not in the cache: the stored one that is most like it, and what differs.
struct Nearest {
  std::string layer;
  std::string digest;
  ArtifactKey key;  // as the entry says, which is not verified
};

// "arch", "options", ...: the fields of the key in which the two differ, in the key's order.
std::vector<std::string> differing_fields(const ArtifactKey& stored, const ArtifactKey& wanted);

// Of the entries with the same text or the same kernel names the one with the most equal fields; of
// equals the first layer's, and there the first by digest. Reads the front of at most kMaxPeeks
// entries a layer.
inline constexpr std::size_t kMaxPeeks = 4096;
std::optional<Nearest> nearest_entry(std::span<const std::unique_ptr<ArtifactLayer>> layers,
                                     const ArtifactKey& wanted);

// "no entry", or of the nearest "compiler differs: 'nvrtc 12.4 ...' is stored, 'nvrtc 13.0 ...' is
// wanted", one field in full and the names of the others; the text's digest is the last to be told.
std::string miss_reason(const std::optional<Nearest>& nearest, const ArtifactKey& wanted);

}  // namespace vqgen

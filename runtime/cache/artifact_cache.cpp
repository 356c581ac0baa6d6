#include "runtime/cache/artifact_cache.h"

#include <fmt/format.h>

#include <cerrno>

#include "core/files/files.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/collect.h"
#include "runtime/cache/nearest.h"
#include "runtime/cache/pack.h"
#include "runtime/cache/trust.h"

namespace vqgen {
namespace {

constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;

// Whether a folder that refuses a write for this reason will refuse the next.
bool lasts(int code) {
  return code == EROFS || code == EACCES || code == EPERM || code == ENOSPC || code == EDQUOT;
}

CacheOptions in_folder(std::filesystem::path folder) {
  CacheOptions options;
  options.folder = std::move(folder);
  return options;
}

std::unique_ptr<ArtifactLayer> open_layer(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return std::make_unique<FolderLayer>(path);
  return std::make_unique<PackLayer>(path);
}

}  // namespace

ArtifactCache::ArtifactCache(std::filesystem::path folder)
    : ArtifactCache(in_folder(std::move(folder))) {}

ArtifactCache::ArtifactCache(CacheOptions options)
    : options_(std::move(options)), warning_(options_.warning) {
  for (const std::filesystem::path& path : options_.read_only) {
    if (const std::string why = distrust(path, Trust::named); !why.empty()) {
      warn(fmt::format("no kernels are taken from {}: {}", path.string(), why));
      continue;
    }
    try {
      layers_.push_back(open_layer(path));
    } catch (const Error& error) {
      warn(fmt::format("no kernels are taken from {}", error.what()));
    }
  }
  if (!options_.folder) return;
  if (const std::string why = distrust(*options_.folder, Trust::own); !why.empty()) {
    warn("kernels are kept in memory alone: " + why);
    return;
  }
  auto folder = std::make_unique<FolderLayer>(*options_.folder);
  folder_ = folder.get();
  layers_.push_back(std::move(folder));
}

Lookup ArtifactCache::search(const ArtifactKey& key, Disk disk) {
  bool damaged = false;
  const std::string digest = key.hex();
  const bool keeps = disk == Disk::kept_in_order;
  for (const auto& layer : layers_) {
    const auto entry = layer->read(digest);
    if (!entry || entry->unreadable) continue;
    if (auto artifact = decode_artifact(entry->bytes, key)) {
      if (keeps && layer.get() == folder_) folder_->touch(digest);
      return {std::move(artifact), layer->path().string(), damaged};
    }
    damaged = true;
    if (keeps && layer.get() == folder_) folder_->set_aside(digest, entry->stamp);
  }
  const std::lock_guard lock(mutex_);
  const auto kept = memory_.find(digest);
  if (kept == memory_.end()) return {std::nullopt, "", damaged};
  return {kept->second, "memory", damaged};
}

Lookup ArtifactCache::look_up(const ArtifactKey& key) { return search(key, Disk::kept_in_order); }

Lookup ArtifactCache::peek(const ArtifactKey& key) { return search(key, Disk::untouched); }

bool ArtifactCache::store(const ArtifactKey& key, const Artifact& artifact) {
  const std::string digest = key.hex();
  {
    const std::lock_guard lock(mutex_);
    if (folder_ == nullptr || unwritable_) {
      keep_in_memory(digest, artifact);
      return false;
    }
  }
  std::size_t bytes = 0;
  try {
    const std::vector<std::byte> encoded = encode_artifact(key, artifact);
    folder_->store(digest, encoded);
    bytes = encoded.size();
  } catch (const std::exception& error) {
    const auto* refused = dynamic_cast<const FileError*>(&error);
    const std::lock_guard lock(mutex_);
    keep_in_memory(digest, artifact);
    unwritable_ = unwritable_ || (refused != nullptr && lasts(refused->code()));
    if (std::exchange(warned_, true)) return false;
    warn(
        fmt::format("compiled kernels are not kept: {}; set VQGEN_CACHE_DIR to a folder that can "
                    "be written",
                    error.what()));
    return false;
  }
  if (counts_as_due(bytes)) collect(folder_->path(), {.max_bytes = options_.max_bytes});
  return true;
}

bool ArtifactCache::counts_as_due(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  uncollected_bytes_ += bytes;
  if (collected_ && uncollected_bytes_ < options_.max_bytes / 16) return false;
  collected_ = true;
  uncollected_bytes_ = 0;
  return true;
}

// Without a bound a server that cannot write would grow with each kernel; past it they are compiled
// again.
void ArtifactCache::keep_in_memory(const std::string& digest, const Artifact& artifact) {
  if (artifact.binary.size() > kMemoryBytes - memory_bytes_) return;
  if (memory_.emplace(digest, artifact).second) memory_bytes_ += artifact.binary.size();
}

void ArtifactCache::warn(const std::string& text) {
  warning_ += (warning_.empty() ? "" : "; ") + text;
}

std::unique_ptr<KeyLock> ArtifactCache::lock(const ArtifactKey& key) const {
  {
    const std::lock_guard lock(mutex_);
    if (folder_ == nullptr || unwritable_ || options_.max_bytes == 0) return nullptr;
  }
  return std::make_unique<KeyLock>(folder_->lock_of(key.hex()), options_.lock_wait);
}

std::string ArtifactCache::why_missed(const ArtifactKey& key, const Lookup& missed) const {
  if (!options_.explain_misses) return "";
  if (missed.damaged) return "damaged";
  return miss_reason(nearest_entry(layers_, key), key);
}

std::string ArtifactCache::warning() const {
  const std::lock_guard lock(mutex_);
  return warning_;
}

CompileResult compile_cached(const Backend& backend, const KernelSource& source,
                             ArtifactCache* cache) {
  if (cache == nullptr) return {backend.compile(source), false};
  if (!backend.may_compile()) {
    if (auto found = find_cached(backend, source, cache)) return *std::move(found);
    return {backend.compile(source), false};  // refuses
  }
  const auto hit = [](Lookup& found) {
    return CompileResult{*std::move(found.artifact), true, std::move(found.layer)};
  };
  const ArtifactKey unopened = artifact_key(source, backend.compiler(source));
  Lookup found = cache->look_up(unopened);
  if (found.artifact) return hit(found);
  const ArtifactKey key = artifact_key(source, backend.opened_compiler(source));
  bool damaged = found.damaged;
  if (key != unopened) found = cache->look_up(key);
  if (found.artifact) return hit(found);
  damaged |= found.damaged;
  std::unique_ptr<KeyLock> lock = cache->lock(key);
  if (lock != nullptr) found = cache->look_up(key);
  if (found.artifact) return hit(found);
  found.damaged |= damaged;
  std::string why = cache->why_missed(key, found);
  // Who held it kept nothing, and nor may this one: the others need not wait for each in turn.
  if (lock != nullptr && lock->waited()) lock.reset();
  CompileResult result{backend.compile(source), false, "", std::move(why)};
  cache->store(artifact_key(source, backend.compiler(source)), result.artifact);
  return result;
}

std::optional<CompileResult> find_cached(const Backend& backend, const KernelSource& source,
                                         ArtifactCache* cache) {
  if (cache == nullptr) return std::nullopt;
  Lookup found = cache->peek(artifact_key(source, backend.compiler(source)));
  if (!found.artifact) return std::nullopt;
  return CompileResult{*std::move(found.artifact), true, std::move(found.layer)};
}

}  // namespace vqgen

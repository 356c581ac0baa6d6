#include "runtime/cache/artifact_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "core/files/files.h"
#include "core/json/leftovers.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/pack.h"

namespace vqgen {
namespace {

constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;

// True if a folder that refuses a write for this reason will refuse the next.
bool lasts(int code) {
  return code == EROFS || code == EACCES || code == EPERM || code == ENOSPC || code == EDQUOT;
}

std::unique_ptr<ArtifactLayer> open_layer(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return std::make_unique<FolderLayer>(path);
  return std::make_unique<PackLayer>(path);
}

CompileResult hit(Lookup& found) {
  return {*std::move(found.artifact), true, std::move(found.layer)};
}

bool same_file(int file, const std::filesystem::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(file, &mine) == 0 && ::stat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

std::string shown(const std::string& value) { return value; }
std::string shown(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

// "arch differs: 'sm_80' is stored, 'sm_90a' is wanted".
std::string difference(const ArtifactKey& stored, const ArtifactKey& wanted,
                       const std::string& name) {
  std::string text;
  for_each_field<ArtifactKey>([&](const auto& field) {
    if (field.name != name) return;
    text = fmt::format("{} differs: '{}' is stored, '{}' is wanted", name,
                       shown(stored.*field.member), shown(wanted.*field.member));
  });
  return text;
}

}  // namespace

// flock has no timeout, so the lock is polled with growing pauses.
KeyLock::KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest)
    : path_(file) {
  make_closed_folders(path_.parent_path());
  const auto end = std::chrono::steady_clock::now() + longest;
  std::chrono::milliseconds pause{1};
  int error = attempt();
  while (error == EWOULDBLOCK || error == EINTR) {
    waited_ = waited_ || error == EWOULDBLOCK;
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds{20});
    error = attempt();
  }
  if (error == 0 || file_ < 0) return;
  ::close(file_);
  file_ = -1;
}

// Makes and locks the file in one step, because nobody would remove a file that nobody holds.
int KeyLock::attempt() {
  Leftovers leftovers;
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) != 0) return errno;
  named_ = same_file(file_, path_);
  if (named_) leftovers.add(path_);
  return 0;
}

// A process that waited for this file still gets it and finds the artifact; a newer file stays.
KeyLock::~KeyLock() {
  if (file_ < 0) return;
  Leftovers leftovers;
  if (same_file(file_, path_)) ::unlink(path_.c_str());
  if (named_) leftovers.forget(path_);
  ::flock(file_, LOCK_UN);  // a child that was forked meanwhile has the file open too
  ::close(file_);
}

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

Lookup ArtifactCache::search(const ArtifactKey& key, bool keeps_order) {
  bool damaged = false;
  const std::string digest = key.hex();
  for (const auto& layer : layers_) {
    const auto entry = layer->read(digest);
    if (!entry || entry->unreadable) continue;
    if (auto artifact = dequantize_artifact(entry->bytes, key)) {
      if (keeps_order && layer.get() == folder_) folder_->touch(digest);
      return {std::move(artifact), layer->path().string(), damaged};
    }
    damaged = true;
    if (keeps_order && layer.get() == folder_) folder_->set_aside(digest, entry->stamp);
  }
  const std::lock_guard lock(mutex_);
  const auto kept = memory_.find(digest);
  if (kept == memory_.end()) return {std::nullopt, "", damaged};
  return {kept->second, "memory", damaged};
}

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

// The bound keeps a server that cannot write from growing with each kernel; kernels past the bound
// are compiled again.
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
  // The previous holder stored nothing, and neither may this process, so the others need not wait
  // in turn.
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
  return hit(found);
}

std::vector<std::string> differing_fields(const ArtifactKey& stored, const ArtifactKey& wanted) {
  std::vector<std::string> names;
  for_each_field<ArtifactKey>([&](const auto& field) {
    if (stored.*field.member != wanted.*field.member) names.emplace_back(field.name);
  });
  return names;
}

std::optional<Nearest> nearest_entry(std::span<const std::unique_ptr<ArtifactLayer>> layers,
                                     const ArtifactKey& wanted) {
  std::optional<Nearest> best;
  std::size_t fewest = 0;
  for (const auto& layer : layers) {
    const std::vector<StoredEntry> entries = layer->entries();
    for (const StoredEntry& entry : std::span(entries).first(std::min(entries.size(), kMaxPeeks))) {
      const auto bytes = layer->read(entry.digest, kPeekBytes);
      auto key = bytes ? peek_key(bytes->bytes) : std::nullopt;
      if (!key) continue;
      if (key->text_sha256 != wanted.text_sha256 && key->entries != wanted.entries) continue;
      const std::size_t differing = differing_fields(*key, wanted).size();
      if (best && differing >= fewest) continue;
      best = Nearest{layer->path().string(), entry.digest, *std::move(key)};
      fewest = differing;
    }
  }
  return best;
}

std::string miss_reason(const std::optional<Nearest>& nearest, const ArtifactKey& wanted) {
  if (!nearest) return "no entry";
  std::vector<std::string> names = differing_fields(nearest->key, wanted);
  if (names.empty()) return "no entry";  // stored by another process since
  // The other differing fields say why the text differs, so the text's digest comes last.
  if (names.front() == "text_sha256") std::rotate(names.begin(), names.begin() + 1, names.end());
  std::string reason = difference(nearest->key, wanted, names.front());
  names.erase(names.begin());
  if (!names.empty()) reason += fmt::format("; {} too", fmt::join(names, ", "));
  return reason;
}

}  // namespace vqgen

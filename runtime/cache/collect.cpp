#include "runtime/cache/collect.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>
#include <vector>

#include "runtime/cache/folder_layer.h"

namespace vqgen {
namespace {

constexpr std::int64_t kLeftoverSeconds = 3600;  // a writer that lives takes no hour

// Oldest use first.
CacheFiles files_by_use(const std::filesystem::path& folder) {
  CacheFiles found = cache_files(folder);
  std::sort(found.files.begin(), found.files.end(), [](const CacheFile& a, const CacheFile& b) {
    return std::tie(a.changed_s, a.path) < std::tie(b.changed_s, b.path);
  });
  return found;
}

bool is_held(const std::filesystem::path& lock) {
  const int file = ::open(lock.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_EX | LOCK_NB) != 0;
  ::close(file);
  return held;
}

// Whether nobody can be using the temporary file or the lock any more.
bool is_left(const CacheFile& file, std::int64_t age) {
  return file.kind == CacheFileKind::lock ? !is_held(file.path) : age > kLeftoverSeconds;
}

// Removes those of the files, oldest first, that `goes` names.
template <class Goes>
Collected remove_where(CacheFiles found, Goes&& goes) {
  Collected collected;
  collected.faults = std::move(found.faults);
  for (const CacheFile& file : found.files) {
    const bool wanted = goes(file);
    const bool removed = wanted && ::unlink(file.path.c_str()) == 0;
    if (wanted && !removed && errno != ENOENT) {
      collected.faults.push_back(
          {file.path, fmt::format("cannot be removed: {}; permit it", std::strerror(errno))});
    }
    if (removed) {
      ++(file.kind == CacheFileKind::entry ? collected.entries : collected.leftovers);
      collected.bytes += file.bytes;
    } else if (file.kind == CacheFileKind::entry) {
      ++collected.kept_entries;
      collected.kept_bytes += file.bytes;
    }
  }
  return collected;
}

}  // namespace

Collected collect(const std::filesystem::path& folder, const CollectLimits& limits) {
  CacheFiles found = files_by_use(folder);
  const std::int64_t now = std::time(nullptr);
  std::uint64_t left = 0;
  for (const CacheFile& file : found.files)
    left += file.kind == CacheFileKind::entry ? file.bytes : 0;
  return remove_where(std::move(found), [&](const CacheFile& file) {
    const std::int64_t age = now - file.changed_s;
    if (file.kind == CacheFileKind::damaged) return true;
    if (file.kind != CacheFileKind::entry) return age > kLeftoverSeconds && is_left(file, age);
    const bool old = limits.max_age && age > limits.max_age->count();
    const bool over = limits.max_bytes && left > *limits.max_bytes;
    if (old || over) left -= file.bytes;
    return old || over;
  });
}

Collected clear_cache(const std::filesystem::path& folder) {
  const std::int64_t now = std::time(nullptr);
  return remove_where(files_by_use(folder), [&](const CacheFile& file) {
    const bool finished = file.kind == CacheFileKind::entry || file.kind == CacheFileKind::damaged;
    return finished || is_left(file, now - file.changed_s);
  });
}

}  // namespace vqgen

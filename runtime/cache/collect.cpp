#include "runtime/cache/collect.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <tuple>
#include <vector>

#include "runtime/cache/folder_layer.h"

namespace vqgen {
namespace {

constexpr std::int64_t kLeftoverSeconds = 3600;  // a writer that lives takes no hour

enum class Kind { entry, damaged, temporary, lock };

struct OwnFile {
  std::filesystem::path path;
  Kind kind = Kind::entry;
  std::uint64_t bytes = 0;
  std::int64_t used_s = 0;
};

// What a cache calls that name in its folder `folder`; nullopt for a stranger.
std::optional<Kind> kind_of(const std::string& folder, const std::string& name) {
  const std::string digest = name.substr(0, 64);
  if (!is_digest(digest)) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(64);
  if (folder == "locks") return rest == ".lock" ? std::optional(Kind::lock) : std::nullopt;
  if (folder != digest.substr(0, 2)) return std::nullopt;
  if (rest == ".vqk") return Kind::entry;
  if (rest == ".vqk.damaged") return Kind::damaged;
  if (rest.starts_with(".vqk.tmp-")) return Kind::temporary;
  return std::nullopt;
}

// Oldest use first.
std::vector<OwnFile> own_files(const std::filesystem::path& folder) {
  std::vector<OwnFile> found;
  for (const CacheFile& file : cache_files(folder)) {
    const auto kind = kind_of(file.path.parent_path().filename(), file.path.filename());
    if (kind) found.push_back({file.path, *kind, file.bytes, file.changed_s});
  }
  std::sort(found.begin(), found.end(), [](const OwnFile& a, const OwnFile& b) {
    return std::tie(a.used_s, a.path) < std::tie(b.used_s, b.path);
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
bool is_left(const OwnFile& file, std::int64_t age) {
  return file.kind == Kind::lock ? !is_held(file.path) : age > kLeftoverSeconds;
}

// Removes those of `files`, oldest first, that `goes` names.
template <class Goes>
Collected remove_where(const std::vector<OwnFile>& files, Goes&& goes) {
  Collected collected;
  for (const OwnFile& file : files) {
    const bool removed = goes(file) && ::unlink(file.path.c_str()) == 0;
    if (removed) {
      ++(file.kind == Kind::entry ? collected.entries : collected.leftovers);
      collected.bytes += file.bytes;
    } else if (file.kind == Kind::entry) {
      ++collected.kept_entries;
      collected.kept_bytes += file.bytes;
    }
  }
  return collected;
}

}  // namespace

Collected collect(const std::filesystem::path& folder, const CollectLimits& limits) {
  const std::vector<OwnFile> files = own_files(folder);
  const std::int64_t now = std::time(nullptr);
  std::uint64_t left = 0;
  for (const OwnFile& file : files) left += file.kind == Kind::entry ? file.bytes : 0;
  return remove_where(files, [&](const OwnFile& file) {
    const std::int64_t age = now - file.used_s;
    if (file.kind == Kind::damaged) return true;
    if (file.kind != Kind::entry) return age > kLeftoverSeconds && is_left(file, age);
    const bool old = limits.max_age && age > limits.max_age->count();
    const bool over = limits.max_bytes && left > *limits.max_bytes;
    if (old || over) left -= file.bytes;
    return old || over;
  });
}

Collected clear_cache(const std::filesystem::path& folder) {
  const std::int64_t now = std::time(nullptr);
  return remove_where(own_files(folder), [&](const OwnFile& file) {
    const bool finished = file.kind == Kind::entry || file.kind == Kind::damaged;
    return finished || is_left(file, now - file.used_s);
  });
}

}  // namespace vqgen

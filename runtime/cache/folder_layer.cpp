#include "runtime/cache/folder_layer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>

#include "core/error.h"
#include "core/files/files.h"
#include "runtime/cache/places.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kStampSeconds = 3600;
constexpr std::int64_t kLeftoverSeconds = 3600;  // a live writer takes less than an hour

// A file that a cache makes, told by its name.
enum class CacheFileKind { entry, damaged, temporary, lock };
struct CacheFile {
  std::filesystem::path path;
  CacheFileKind kind = CacheFileKind::entry;
  std::uint64_t bytes = 0;
  std::int64_t changed_s = 0;
};
// The cache's files in the folders xx/ and locks/, by path, and the faults that hide others:
// unreadable folders, and entries of the wrong type. A missing folder counts as an empty one.
struct CacheFiles {
  std::vector<CacheFile> files = {};
  std::vector<CacheFault> faults = {};
};

// Reads from the start until `bytes` is full or the file ends. Returns how many bytes were read, or
// nullopt if the system refuses.
std::optional<std::size_t> read_fully(int file, std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno != EINTR) return std::nullopt;
    if (got == 0) break;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return done;
}

FileStamp stamp_of(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_own_folder(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name == "locks" || (name.size() == 2 && is_hex(name[0]) && is_hex(name[1]));
}

// The kind of file that a cache gives that name, in a folder of its own; nullopt for other names.
std::optional<CacheFileKind> kind_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string folder = path.parent_path().filename().string();
  const std::string digest = name.substr(0, 64);
  if (!is_digest(digest)) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(64);
  if (folder == "locks") {
    return rest == ".lock" ? std::optional(CacheFileKind::lock) : std::nullopt;
  }
  if (folder != digest.substr(0, 2)) return std::nullopt;
  if (rest == ".vqk") return CacheFileKind::entry;
  if (rest == ".vqk.damaged") return CacheFileKind::damaged;
  if (rest.starts_with(".vqk.tmp-")) return CacheFileKind::temporary;
  return std::nullopt;
}

// Calls visit(path, status) for each entry of a folder that is of type `wanted` (S_IFDIR or
// S_IFREG) and whose name is `ours`. Follows no link: a user may have named the folder by mistake.
// Skips entries that are gone since; all others are faults.
template <class Ours, class Visit>
void each_in(const std::filesystem::path& folder, mode_t wanted, const Ours& ours,
             std::vector<CacheFault>& faults, const Visit& visit) {
  const auto refused = [&](const std::filesystem::path& path, int error) {
    if (error == ENOENT) return;
    faults.push_back({path, fmt::format("cannot be read: {}; permit it, or name another folder",
                                        std::strerror(error))});
  };
  std::error_code code;
  std::filesystem::directory_iterator names(folder, code);
  for (; !code && names != std::filesystem::directory_iterator(); names.increment(code)) {
    const std::filesystem::path& path = names->path();
    struct stat status {};
    if (!ours(path)) continue;
    if (::lstat(path.c_str(), &status) != 0) {
      refused(path, errno);
    } else if ((status.st_mode & S_IFMT) == wanted) {
      visit(path, status);
    } else {
      faults.push_back({path, fmt::format("is no {}, and is in the place of one; remove it",
                                          wanted == S_IFDIR ? "folder" : "file")});
    }
  }
  if (code) refused(folder, code.value());
}

CacheFiles cache_files(const std::filesystem::path& folder) {
  CacheFiles found;
  each_in(folder, S_IFDIR, is_own_folder, found.faults, [&](const auto& inner, const auto&) {
    each_in(inner, S_IFREG, kind_of, found.faults, [&](const auto& path, const auto& status) {
      found.files.push_back(
          {path, *kind_of(path), static_cast<std::uint64_t>(status.st_size), status.st_mtime});
    });
  });
  std::sort(found.files.begin(), found.files.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.path < b.path; });
  return found;
}

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

// True if no process can still use the temporary file or the lock.
bool is_left(const CacheFile& file, std::int64_t age) {
  return file.kind == CacheFileKind::lock ? !is_held(file.path) : age > kLeftoverSeconds;
}

// Removes the files that `goes` selects, in the order of `found`.
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

bool is_digest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex);
}

// Two levels, so that no folder grows large.
std::filesystem::path FolderLayer::path_of(std::string_view digest) const {
  return folder_ / digest.substr(0, 2) / (std::string(digest) + ".vqk");
}

// Trusts files of this user or of the folder's owner. The folder was judged when the layer was
// opened, but a file in it may be from a time when others could write there.
bool FolderLayer::is_trusted(const struct stat& entry) const {
  struct stat folder {};
  if (open_to_others(entry)) return false;
  return is_ours(entry) || (::stat(folder_.c_str(), &folder) == 0 && folder.st_uid == entry.st_uid);
}

std::filesystem::path FolderLayer::lock_of(std::string_view digest) const {
  return folder_ / "locks" / (std::string(digest) + ".lock");
}

std::optional<EntryBytes> FolderLayer::read(std::string_view digest,
                                            std::uint64_t max_bytes) const {
  // O_NONBLOCK: a pipe of that name must not block the reader.
  const int file = ::open(path_of(digest).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  EntryBytes entry{.unreadable = true};
  if (file < 0) return entry;
  struct stat status {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (regular && is_trusted(status)) {
    entry.stamp = stamp_of(status);
    const std::uint64_t size = std::min(static_cast<std::uint64_t>(status.st_size), max_bytes);
    entry.bytes.resize(size <= kMaxFileBytes ? static_cast<std::size_t>(size) : 0);
    const std::optional<std::size_t> done = read_fully(file, entry.bytes);
    if (done != entry.bytes.size()) entry.bytes.clear();
    entry.unreadable = !done;
  }
  ::close(file);
  return entry;
}

Listing FolderLayer::list() const {
  CacheFiles scanned = cache_files(folder_);
  Listing found{.faults = std::move(scanned.faults)};
  for (const CacheFile& file : scanned.files) {
    if (file.kind != CacheFileKind::entry) continue;
    found.entries.push_back({file.path.stem().string(), file.bytes, file.changed_s});
  }
  return found;
}

void FolderLayer::store(std::string_view digest, std::span<const std::byte> bytes) const {
  const std::filesystem::path path = path_of(digest);
  const auto attempt = [&] {
    if (const std::error_code code = make_closed_folders(path.parent_path())) {
      throw FileError(code.value(), fmt::format("{}: cannot make the folder: {}; choose another",
                                                path.parent_path().string(), code.message()));
    }
    publish_file(path, bytes);
  };
  try {
    attempt();
  } catch (const FileError& error) {
    if (error.code() != ENOENT) throw;
    attempt();
  }
}

void FolderLayer::set_aside(std::string_view digest, const FileStamp& read) const {
  const std::filesystem::path path = path_of(digest);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || stamp_of(status) != read) return;
  std::error_code ignored;  // read-only, or another process was faster
  std::filesystem::rename(path, path.string() + ".damaged", ignored);
}

void FolderLayer::touch(std::string_view digest) const {
  const std::filesystem::path path = path_of(digest);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;
  if (std::time(nullptr) - status.st_mtime < kStampSeconds) return;
  [[maybe_unused]] const int ignored = ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

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

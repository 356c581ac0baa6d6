#include "runtime/cache/folder_layer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "core/files/files.h"
#include "runtime/cache/trust.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kStampSeconds = 3600;

enum class ReadOutcome { whole, too_short, refused };

// Reads from the start until `bytes` is full.
ReadOutcome read_fully(int file, std::vector<std::byte>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got == 0) return ReadOutcome::too_short;
    if (got < 0 && errno != EINTR) return ReadOutcome::refused;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return ReadOutcome::whole;
}

FileStamp stamp_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_own_folder(const std::string& name) {
  return name == "locks" || (name.size() == 2 && is_hex(name[0]) && is_hex(name[1]));
}

// What a cache calls that name in its folder `folder`; nullopt for a stranger.
std::optional<CacheFileKind> kind_of(const std::string& folder, const std::string& name) {
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

// Looks through a folder. No deeper than is its own, and through no link: it may be one that
// somebody named by mistake.
class Scan {
 public:
  void folder(const std::filesystem::path& folder) {
    each_in(folder, [&](const std::filesystem::path& inner) {
      struct stat status {};
      if (!is_own_folder(inner.filename().string()) || !look(inner, status)) return;
      if (S_ISDIR(status.st_mode)) return own_folder(inner);
      fail(inner, "is no folder, and stands in the place of one; remove it");
    });
    std::sort(found.files.begin(), found.files.end(),
              [](const CacheFile& a, const CacheFile& b) { return a.path < b.path; });
  }

  CacheFiles found;

 private:
  void own_folder(const std::filesystem::path& inner) {
    each_in(inner, [&](const std::filesystem::path& path) {
      const auto kind = kind_of(inner.filename().string(), path.filename().string());
      struct stat status {};
      if (!kind || !look(path, status)) return;
      if (!S_ISREG(status.st_mode)) {
        fail(path, "is no file, and stands in the place of one; remove it");
        return;
      }
      found.files.push_back(
          {path, *kind, static_cast<std::uint64_t>(status.st_size), status.st_mtime});
    });
  }
  template <class Visit>
  void each_in(const std::filesystem::path& folder, Visit&& visit) {
    std::error_code code;
    std::filesystem::directory_iterator names(folder, code);
    for (; !code && names != std::filesystem::directory_iterator(); names.increment(code)) {
      visit(names->path());
    }
    if (code) refused(folder, code.value());
  }
  // False where it cannot be looked at, or is gone since.
  bool look(const std::filesystem::path& path, struct stat& status) {
    if (::lstat(path.c_str(), &status) == 0) return true;
    refused(path, errno);
    return false;
  }
  void refused(const std::filesystem::path& path, int error) {
    if (error == ENOENT) return;
    fail(path, fmt::format("cannot be read: {}; permit it, or name another folder",
                           std::strerror(error)));
  }
  void fail(const std::filesystem::path& path, std::string why) {
    found.faults.push_back({path, std::move(why)});
  }
};

}  // namespace

bool is_digest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex);
}

CacheFiles cache_files(const std::filesystem::path& folder) {
  Scan scan;
  scan.folder(folder);
  return std::move(scan.found);
}

FolderLayer::FolderLayer(std::filesystem::path folder) : folder_(std::move(folder)) {}

// Two levels, so that no folder grows large.
std::filesystem::path FolderLayer::path_of(std::string_view digest) const {
  return folder_ / digest.substr(0, 2) / (std::string(digest) + ".vqk");
}

// Of whoever the folder belongs to, or this user: the folder was judged when the layer was opened,
// but files in it may be from a time when others could write there.
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
  // A pipe of that name must not be waited for.
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
    const ReadOutcome outcome = read_fully(file, entry.bytes);
    if (outcome != ReadOutcome::whole) entry.bytes.clear();
    entry.unreadable = outcome == ReadOutcome::refused;
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

}  // namespace vqgen

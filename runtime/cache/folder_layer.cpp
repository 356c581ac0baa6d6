#include "runtime/cache/folder_layer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "core/error.h"
#include "core/files.h"

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

// visit(path) for each name in the folder; none where it cannot be read.
template <class Visit>
void each_in(const std::filesystem::path& folder, Visit&& visit) {
  std::error_code code;
  std::filesystem::directory_iterator names(folder, code);
  for (; !code && names != std::filesystem::directory_iterator(); names.increment(code)) {
    visit(names->path());
  }
}

}  // namespace

bool is_digest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex);
}

// No deeper, and through no link: the folder may be one that somebody named by mistake.
std::vector<CacheFile> cache_files(const std::filesystem::path& folder) {
  std::vector<CacheFile> found;
  each_in(folder, [&](const std::filesystem::path& inner) {
    struct stat status {};
    if (!is_own_folder(inner.filename().string())) return;
    if (::lstat(inner.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return;
    each_in(inner, [&](const std::filesystem::path& path) {
      if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
      found.push_back({path, static_cast<std::uint64_t>(status.st_size), status.st_mtime});
    });
  });
  std::sort(found.begin(), found.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.path < b.path; });
  return found;
}

FolderLayer::FolderLayer(std::filesystem::path folder) : folder_(std::move(folder)) {}

// Two levels, so that no folder grows large.
std::filesystem::path FolderLayer::path_of(std::string_view digest) const {
  return folder_ / digest.substr(0, 2) / (std::string(digest) + ".vqk");
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
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
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

std::vector<StoredEntry> FolderLayer::entries() const {
  std::vector<StoredEntry> found;
  for (const CacheFile& file : cache_files(folder_)) {
    std::string digest = file.path.stem().string();
    if (!is_digest(digest) || file.path != path_of(digest)) continue;
    found.push_back({std::move(digest), file.bytes, file.changed_s});
  }
  return found;
}

void FolderLayer::store(std::string_view digest, std::span<const std::byte> bytes) const {
  const std::filesystem::path path = path_of(digest);
  const auto attempt = [&] {
    std::error_code code;
    std::filesystem::create_directories(path.parent_path(), code);
    if (code) {
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

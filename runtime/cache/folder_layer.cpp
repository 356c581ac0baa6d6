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

// Reads from the start until `bytes` is full; false where the file gives less.
bool read_fully(int file, std::vector<std::byte>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

bool is_digest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

FolderLayer::FolderLayer(std::filesystem::path folder) : folder_(std::move(folder)) {}

// Two levels, so that no folder grows large.
std::filesystem::path FolderLayer::path_of(std::string_view digest) const {
  return folder_ / digest.substr(0, 2) / (std::string(digest) + ".vqk");
}

std::filesystem::path FolderLayer::lock_of(std::string_view digest) const {
  return folder_ / "locks" / (std::string(digest) + ".lock");
}

std::optional<std::vector<std::byte>> FolderLayer::read(std::string_view digest,
                                                        std::uint64_t max_bytes) const {
  // A pipe of that name must not be waited for.
  const int file = ::open(path_of(digest).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  std::optional<std::vector<std::byte>> bytes;
  struct stat status {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    const std::uint64_t size = std::min(static_cast<std::uint64_t>(status.st_size), max_bytes);
    bytes.emplace(size <= kMaxFileBytes ? static_cast<std::size_t>(size) : 0);
    if (!read_fully(file, *bytes)) bytes->clear();
  }
  ::close(file);
  return bytes;
}

std::vector<StoredEntry> FolderLayer::entries() const {
  std::vector<StoredEntry> found;
  std::error_code code;
  std::filesystem::recursive_directory_iterator files(
      folder_, std::filesystem::directory_options::skip_permission_denied, code);
  for (; !code && files != std::filesystem::recursive_directory_iterator(); files.increment(code)) {
    const std::filesystem::path& file = files->path();
    const std::string digest = file.stem().string();
    if (!is_digest(digest) || file != path_of(digest)) continue;
    struct stat status {};
    if (::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    found.push_back({digest, static_cast<std::uint64_t>(status.st_size), status.st_mtime});
  }
  std::sort(found.begin(), found.end(),
            [](const StoredEntry& a, const StoredEntry& b) { return a.digest < b.digest; });
  return found;
}

void FolderLayer::store(std::string_view digest, std::span<const std::byte> bytes) const {
  const std::filesystem::path path = path_of(digest);
  std::error_code code;
  std::filesystem::create_directories(path.parent_path(), code);
  if (code) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: cannot make the folder: {}; choose another",
                                                  path.parent_path().string(), code.message()));
  }
  publish_file(path, bytes);
}

void FolderLayer::set_aside(std::string_view digest) const {
  const std::filesystem::path path = path_of(digest);
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

#include "core/files/placed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/files/files.h"

namespace vqgen {

PlacedFile::PlacedFile(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(errno);
}

PlacedFile::~PlacedFile() { ::close(descriptor_); }

std::uint64_t PlacedFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail(errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void PlacedFile::resize(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail(errno);
}

void PlacedFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote >= 0) {
      offset += static_cast<std::uint64_t>(wrote);
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void PlacedFile::sync() {
  if (::fsync(descriptor_) != 0) fail(errno);
}

bool PlacedFile::lock() {
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail(errno);
  }
  return true;
}

void PlacedFile::fail(int error) const {
  const char* const remedy = error == ENOSPC || error == EDQUOT || error == EFBIG
                                 ? "free some space there and start again"
                                 : "choose a place that can be written";
  throw FileError(
      error, fmt::format("{}: cannot write: {}; {}", path_.string(), std::strerror(error), remedy));
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int opened = descriptor < 0 ? errno : 0;
  const int error = opened != 0 ? opened : ::fsync(descriptor) != 0 ? errno : 0;
  if (descriptor >= 0) ::close(descriptor);
  if (error == 0 || error == EINVAL) return;  // some network file systems know no such call
  throw FileError(error, fmt::format("{}: cannot write: {}; choose a place that can be written",
                                     folder.string(), std::strerror(error)));
}

}  // namespace vqgen

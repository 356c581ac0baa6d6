#include "core/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <random>

#include "core/json/leftovers.h"

namespace vqgen {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int error,
                       std::string_view remedy) {
  throw FileError(error,
                  fmt::format("{}: {}: {}; {}", path.string(), what, std::strerror(error), remedy));
}

[[noreturn]] void fail_read(const std::filesystem::path& path, int error) {
  fail(path, "cannot read", error,
       error == ENOENT || error == ENOTDIR ? "correct its path, or make it"
       : error == EISDIR                   ? "name a file in it"
       : error == EACCES                   ? "give yourself the right to read it"
                                           : "name a file that can be read");
}

[[noreturn]] void fail_write(const std::filesystem::path& path, int error) {
  fail(path, "cannot write", error, "choose a place that can be written");
}

template <class Container>
Container read_whole(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const OpenFile file(path);
  if (file.size() > max_bytes) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {} bytes are more than the {} allowed; give a smaller file",
                            path.string(), file.size(), max_bytes));
  }
  Container content(static_cast<std::size_t>(file.size()), typename Container::value_type{});
  file.read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

// A name beside `path` that no other thread, process or host uses: a process number alone repeats
// where containers share a folder, and what is drawn at random is the same after a fork.
std::filesystem::path sibling(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  static const std::uint64_t random =
      std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  std::filesystem::path name = path;
  name += fmt::format(".tmp-{:x}-{}-{}", random, ::getpid(), counter++);
  return name;
}

// Bytes beside their target, which become it or go with this.
class Staged {
 public:
  explicit Staged(const FileContent& file) : path_(file.path), temporary_(sibling(file.path)) {
    require_replaceable();
    const int descriptor = create();
    int error = write_all(descriptor, file.bytes);
    if (error == 0 && ::fsync(descriptor) != 0) error = errno;
    if (::close(descriptor) != 0 && error == 0) error = errno;
    if (error == 0) return;
    remove();
    fail_write(path_, error);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    if (!published_) remove();
  }

  void publish(Leftovers& leftovers) {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_write(path_, errno);
    leftovers.forget(temporary_);
    published_ = true;
  }

 private:
  int create() const {
    Leftovers leftovers;
    const int file = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) fail_write(path_, errno);
    leftovers.add(temporary_);
    return file;
  }
  void remove() const {
    Leftovers leftovers;
    ::unlink(temporary_.c_str());
    leftovers.forget(temporary_);
  }
  void require_replaceable() const {
    std::error_code code;
    const auto target = std::filesystem::symlink_status(path_, code);
    if (!std::filesystem::exists(target) || std::filesystem::is_regular_file(target)) return;
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}: cannot write: it is no regular file; name another", path_.string()));
  }

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool published_ = false;
};

}  // namespace

int write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

OpenFile::OpenFile(const std::filesystem::path& path) : path_(path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) fail_read(path, ENOENT);
  if (std::filesystem::is_directory(status)) fail_read(path, EISDIR);
  size_ = std::filesystem::file_size(path, code);
  if (code) fail_read(path, code.value());
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail_read(path, errno);
}

OpenFile::~OpenFile() { ::close(descriptor_); }

void OpenFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got > 0) {
      offset += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      fail_read(path_, EIO);
    } else if (errno != EINTR) {
      fail_read(path_, errno);
    }
  }
}

std::vector<std::byte> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return read_whole<std::vector<std::byte>>(path, max_bytes);
}

std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return read_whole<std::string>(path, max_bytes);
}

void publish_files(std::span<const FileContent> files) {
  std::deque<Staged> staged;
  for (const FileContent& file : files) staged.emplace_back(file);
  Leftovers leftovers;  // no interruption comes between them
  for (Staged& file : staged) file.publish(leftovers);
}

void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const FileContent file{path, bytes};
  publish_files({&file, 1});
}

void publish_text(const std::filesystem::path& path, std::string_view text) {
  publish_file(path, std::as_bytes(std::span(text)));
}

}  // namespace vqgen

// Reading and publishing whole files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace vqgen {

// A file that the system refuses, and its errno.
class FileError : public Error {
 public:
  FileError(int code, const std::string& message)
      : Error(ErrorKind::bad_input, message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// The whole file. Error(bad_input) where it is missing, unreadable, a directory, or longer than
// `max_bytes`; the message names the path.
std::vector<std::byte> read_file(const std::filesystem::path& path,
                                 std::uint64_t max_bytes = std::uint64_t{1} << 36);
std::string read_text(const std::filesystem::path& path,
                      std::uint64_t max_bytes = std::uint64_t{1} << 26);

// A file that is read in parts, as large as it was when it was opened. Errors as of read_file().
// Thread-safe but for its end; not copied.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path);
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  std::uint64_t size() const { return size_; }
  // The bytes from `offset` on that fill `into`; an Error where the file has become shorter.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Writes all of the bytes, however often the system takes a part or is interrupted; 0, or errno.
int write_all(int descriptor, std::span<const std::byte> bytes);

// Writes beside the target and renames, so that a reader sees the old file or the whole new one and
// a failure leaves nothing behind. Parent directories must exist. Error(bad_input) names the path;
// it is a FileError unless the target is there and no regular file.
void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void publish_text(const std::filesystem::path& path, std::string_view text);

struct FileContent {
  std::filesystem::path path;
  std::span<const std::byte> bytes;  // owned by the caller
};

// Publishes files that belong together as publish_file() does: all are written before the first is
// renamed, so that an unwritable place or an interruption (core/json/leftovers.h) leaves all or
// none. Only a failing rename leaves those renamed before it.
void publish_files(std::span<const FileContent> files);

}  // namespace vqgen

// A child process that is spoken to in lines: a socket for its standard input and output, a pipe
// for its errors, of which the end is kept. Nothing that the child does blocks this process for
// longer than it asks to wait, or raises a signal in it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tuning/line_buffer.h"

namespace vqgen {

// A file descriptor that is closed with its owner. Move-only.
class OwnedFile {
 public:
  OwnedFile() = default;
  explicit OwnedFile(int file) : file_(file) {}
  OwnedFile(OwnedFile&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  OwnedFile& operator=(OwnedFile&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~OwnedFile();
  int get() const { return file_; }

 private:
  int file_ = -1;
};

// Not thread-safe.
class ChildProcess {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Starts program and arguments, found along PATH, in a process group of its own. It sees this
  // process's environment. Error(device) where it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& command);
  // Ends it and what it started, and waits for it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The text and a line's end; false where the child did not take all of it in time, or has closed.
  bool send(std::string_view text, Time deadline);

  enum class Got {
    line,
    nothing,   // until the deadline; what arrived before it is always found first
    end,       // the child has closed its output
    too_long,  // a line beyond kMostLineBytes
  };
  Got receive(std::string& line, Time deadline);

  // After Got::end: how it ended, "ended by signal 11 (Segmentation fault)", with the last line
  // that it wrote as an error. Waits a little for the end, and then makes it.
  std::string last_words();

 private:
  static constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

  bool wait(int events, Time deadline, int& ready);
  bool take_errors();  // false where there are none, now or any more
  std::optional<int> finish(std::chrono::milliseconds patience);

  pid_t pid_ = -1;
  OwnedFile talk_;
  OwnedFile errors_;
  LineBuffer lines_{kMostLineBytes};
  std::string error_tail_;
};

}  // namespace vqgen

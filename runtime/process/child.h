// A child process: the one place that starts, awaits, ends and reaps one. It leads a group of its
// own, so that what it starts ends with it; it has an empty signal mask, the default dispositions
// and none of this process's files; and it is named as a leftover of an interruption.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json/leftovers.h"

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

// The same file under a number that is in the way of no child's standard files.
OwnedFile above_standard(OwnedFile file);

struct ChildSetup {
  std::vector<std::string> command;           // program, found along PATH, and arguments
  std::filesystem::path folder = {};          // where it runs; empty: here
  std::vector<std::string> environment = {};  // "NAME=value" in place of this process's
  Farewell farewell = Farewell::kill;
};

// Standard input, output and errors of a child, each above_standard().
struct ChildFiles {
  int in = -1;
  int out = -1;
  int errors = -1;
};

// A program that does not start, and errno.
class StartError : public Error {
 public:
  StartError(int code, const std::string& message)
      : Error(ErrorKind::device, message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Not thread-safe, but for several objects.
class Child {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // StartError.
  Child(const ChildSetup& setup, const ChildFiles& files);
  // Ends it.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Whether it has ended by itself; waits for that until `deadline` at most.
  bool ended(Time deadline) const;

  // Ends it and its group, and reaps it; nothing the second time. What waitpid() says of one that
  // had ended by itself; nullopt of others, and where this process gets no status since it ignores
  // SIGCHLD or reaps all children itself.
  std::optional<int> end();

 private:
  pid_t pid_ = -1;
  Farewell farewell_;
};

// "ended with status 1", "ended by signal 11 (Segmentation fault)".
std::string describe_status(int status);

// A child process that is spoken to: a socket for its standard input and output, a pipe for its
// errors, of which the end is kept. Nothing that the child does blocks this process for longer than
// it asks to wait, or raises a signal in it. Not thread-safe, but for several objects.
class ChildTalk {
 public:
  using Time = Child::Time;

  // StartError.
  explicit ChildTalk(const ChildSetup& setup);

  // False where the child did not take all of it in time, or has closed.
  bool send(std::string_view bytes, Time deadline);

  enum class Got {
    bytes,
    nothing,  // until the deadline; what arrived before it is always found first
    end,      // the child has closed its output
  };
  // Appends what has arrived, one byte at least, 64 KiB at most.
  Got receive(std::string& bytes, Time deadline);

  // After Got::end: how it ended, "ended by signal 11 (Segmentation fault)", with the last line
  // that it wrote as an error. Waits a little for the end, and then makes it.
  std::string last_words();

 private:
  bool wait(int events, Time deadline);
  bool take_errors();  // false where there are none, now or any more

  OwnedFile talk_;
  OwnedFile errors_;
  std::string error_tail_;
  std::optional<Child> child_;  // always
};

}  // namespace vqgen

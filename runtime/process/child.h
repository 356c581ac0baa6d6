// A child process; only this code starts, awaits, ends and reaps children. A child leads its own
// group, so that what it starts ends with it. It has an empty signal mask, default dispositions and
// none of this process's files, and is registered as a leftover of an interruption.
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

// Moves a file to a number that does not collide with a child's standard files.
OwnedFile above_standard(OwnedFile file);

struct ChildSetup {
  std::vector<std::string> command;           // program, found along PATH, and arguments
  std::filesystem::path folder = {};          // where it runs; empty: here
  std::vector<std::string> environment = {};  // "NAME=value", over this process's environment
  Farewell farewell = Farewell::kill;
};

// Standard input, output and error of a child, each made by above_standard().
struct ChildFiles {
  int in = -1;
  int out = -1;
  int errors = -1;
};

// A program that did not start, and errno.
class StartError : public Error {
 public:
  StartError(int code, const std::string& message)
      : Error(ErrorKind::device, message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Not thread-safe; separate objects are independent.
class Child {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws StartError.
  Child(const ChildSetup& setup, const ChildFiles& files);
  // Ends the child.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // True if the child has ended by itself; it is waited for until `deadline` at most.
  bool ended(Time deadline) const;

  // Ends it and its group, and reaps it; a second call does nothing. Returns waitpid()'s status if
  // it had ended by itself; nullopt if not, or if this process ignores SIGCHLD or reaps all
  // children itself.
  std::optional<int> end();

 private:
  pid_t pid_ = -1;
  Farewell farewell_;
};

// "ended with status 1", "ended by signal 11 (Segmentation fault)".
std::string describe_status(int status);

// A child process with a socket for its standard input and output and a pipe for its errors, whose
// end is kept. The child cannot block this process for longer than it asks to wait, or raise a
// signal in it. Not thread-safe; separate objects are independent.
class ChildTalk {
 public:
  using Time = Child::Time;

  // Throws StartError.
  explicit ChildTalk(const ChildSetup& setup);

  // Returns false if the child did not take all of it in time, or has closed.
  bool send(std::string_view bytes, Time deadline);

  enum class Got {
    bytes,
    nothing,  // nothing until the deadline; earlier bytes are always found first
    end,      // the child has closed its output
  };
  // Appends what has arrived: at least one byte, at most 64 KiB.
  Got receive(std::string& bytes, Time deadline);

  // How the child ended, after Got::end: "ended by signal 11 (Segmentation fault)", with the last
  // line of its errors. Waits briefly for the end, then forces it.
  std::string last_words();

 private:
  bool wait(int events, Time deadline);
  bool take_errors();  // false if there are no further bytes

  OwnedFile talk_;
  OwnedFile errors_;
  std::string error_tail_;
  std::optional<Child> child_;  // always
};

}  // namespace vqgen

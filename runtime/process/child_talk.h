// A child process that is spoken to: a socket for its standard input and output, a pipe for its
// errors, of which the end is kept. Nothing that the child does blocks this process for longer than
// it asks to wait, or raises a signal in it.
#pragma once

#include <string>
#include <string_view>

#include "runtime/process/child.h"

namespace vqgen {

// Not thread-safe, but for several objects.
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
  struct Pipes {
    OwnedFile talk, errors;              // of this process
    OwnedFile child_talk, child_errors;  // of the child
  };
  static Pipes open_pipes(const ChildSetup& setup);
  ChildTalk(const ChildSetup& setup, Pipes pipes);
  bool wait(int events, Time deadline, int& ready);
  bool take_errors();  // false where there are none, now or any more

  OwnedFile talk_;
  OwnedFile errors_;
  std::string error_tail_;
  Child child_;
};

}  // namespace vqgen

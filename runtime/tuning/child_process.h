// A worker process that is spoken to in lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/process/child_talk.h"
#include "runtime/tuning/line_buffer.h"

namespace vqgen {

// Not thread-safe.
class ChildProcess {
 public:
  using Time = ChildTalk::Time;

  // Starts program and arguments, found along PATH. It sees this process's environment, and is
  // asked to end by SIGTERM, since it has temporary files and children of its own. StartError.
  explicit ChildProcess(const std::vector<std::string>& command);

  // The text and a line's end; false where the child did not take all of it in time, or has closed.
  bool send(std::string_view text, Time deadline);

  enum class Got {
    line,
    nothing,   // until the deadline; what arrived before it is always found first
    end,       // the child has closed its output
    too_long,  // a line beyond kMostLineBytes
  };
  Got receive(std::string& line, Time deadline);

  // ChildTalk::last_words().
  std::string last_words() { return talk_.last_words(); }

 private:
  static constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

  ChildTalk talk_;
  LineBuffer lines_{kMostLineBytes};
};

}  // namespace vqgen

#include "runtime/tuning/child_process.h"

namespace vqgen {

ChildProcess::ChildProcess(const std::vector<std::string>& command)
    : talk_({.command = command, .farewell = Farewell::terminate}) {}

bool ChildProcess::send(std::string_view text, Time deadline) {
  return talk_.send(std::string(text) + '\n', deadline);
}

ChildProcess::Got ChildProcess::receive(std::string& line, Time deadline) {
  for (;;) {
    if (std::optional<std::string> next = lines_.take()) {
      line = std::move(*next);
      return Got::line;
    }
    if (lines_.overflows()) return Got::too_long;
    std::string bytes;
    const ChildTalk::Got got = talk_.receive(bytes, deadline);
    if (got == ChildTalk::Got::nothing) return Got::nothing;
    if (got == ChildTalk::Got::end) return Got::end;
    lines_.add(bytes);
  }
}

}  // namespace vqgen

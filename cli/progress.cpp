#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace vqgen::cli {

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (open_) std::fputs("\n", stderr);
}

void Progress::show(double fraction, const std::string& label) {
  const int percent = static_cast<int>(fraction * 100.0);
  if (!terminal_) {
    if (label != last_label_)
      std::fputs(fmt::format("{:3d}% {}\n", percent, label).c_str(), stderr);
  } else if (percent != last_percent_ || label != last_label_) {
    constexpr int kWidth = 30;
    const std::string bar(static_cast<std::size_t>(percent * kWidth / 100), '#');
    std::fputs(fmt::format("\r\033[K[{:<{}}] {:3d}% {}", bar, kWidth, percent, label).c_str(),
               stderr);
    std::fflush(stderr);
    open_ = true;
  }
  last_percent_ = percent;
  last_label_ = label;
}

}  // namespace vqgen::cli

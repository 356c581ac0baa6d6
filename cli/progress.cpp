#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace vqgen::cli {

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (open_) fmt::print(stderr, "\n");
}

void Progress::show(double fraction, const std::string& label) {
  const int percent = static_cast<int>(fraction * 100.0);
  if (!terminal_) {
    if (label != last_label_) fmt::print(stderr, "{:3d}% {}\n", percent, label);
  } else if (percent != last_percent_ || label != last_label_) {
    constexpr int kWidth = 30;
    const std::string bar(static_cast<std::size_t>(percent * kWidth / 100), '#');
    fmt::print(stderr, "\r\033[K[{:<{}}] {:3d}% {}", bar, kWidth, percent, label);
    std::fflush(stderr);
    open_ = true;
  }
  last_percent_ = percent;
  last_label_ = label;
}

}  // namespace vqgen::cli

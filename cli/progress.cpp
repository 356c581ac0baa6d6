#include "cli/progress.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/command.h"
#include "core/files/files.h"

namespace vqgen::cli {
namespace {

constexpr std::chrono::seconds kSilence{2};
constexpr std::chrono::milliseconds kBetweenDraws{250};

// Not through stdio, whose lock a child that is forked meanwhile would inherit. A terminal that
// takes no more gets no progress.
void write_terminal(const std::string& text) {
  write_all(STDERR_FILENO, std::as_bytes(std::span(text)));
}

// What fits a line of the terminal, which must not wrap or end; whole characters of UTF-8.
std::string fitted(const std::string& line) {
  std::string text = one_line(line);
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  std::size_t end = std::min<std::size_t>(text.size(), known ? size.ws_col - 1u : 79u);
  while (end < text.size() && end > 0 && (text[end] & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void Progress::begin(std::string step) {
  if (!terminal_) return;
  {
    const std::scoped_lock lock(mutex_);
    begun_ = Clock::now();
    label_ = std::move(step);
    fraction_.reset();
  }
  if (drawer_.joinable()) return clear();
  // Signals are for the thread that works.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  drawer_ = std::thread([this] { draw_until_end(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Progress::show(double fraction, std::string label) {
  const std::scoped_lock lock(mutex_);
  fraction_ = std::clamp(fraction, 0.0, 1.0);
  label_ = std::move(label);
}

void Progress::clear() {
  const std::scoped_lock lock(mutex_);
  if (drawn_) write_terminal("\r\033[K");
  drawn_ = false;
}

void Progress::end() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (drawer_.joinable()) drawer_.join();
  clear();
  ending_ = false;
}

void Progress::draw_until_end() {
  std::unique_lock lock(mutex_);
  std::string shown;
  for (auto next = begun_ + kSilence; !ending_;) {
    changed_.wait_until(lock, next, [&] { return ending_; });
    const auto now = Clock::now();
    next = std::max(now + kBetweenDraws, begun_ + kSilence);
    if (ending_ || now < begun_ + kSilence) continue;
    std::string text = fitted(line(now));
    if (drawn_ && text == shown) continue;
    write_terminal("\r\033[K" + text);
    drawn_ = true;
    shown = std::move(text);
  }
}

std::string Progress::line(Clock::time_point now) const {
  if (!fraction_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
    return fmt::format("{:>3} s  {}", seconds, label_);
  }
  constexpr int kWidth = 30;
  const std::string bar(static_cast<std::size_t>(std::lround(*fraction_ * kWidth)), '#');
  return fmt::format("[{:<{}}] {:3.0f}% {}", bar, kWidth, *fraction_ * 100, label_);
}

}  // namespace vqgen::cli

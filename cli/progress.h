// What a command is busy with, as the last line of a terminal: what takes longer than two seconds
// says its name and its age, or how far it is. One thread draws, each time in one write, so that no
// line is torn; it exists only while there is something to say. Where stderr is no terminal there
// is no progress at all: logs and pipes get results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace vqgen::cli {

// Thread-safe, but for begin() and end(), which are of one thread.
class Progress {
 public:
  Progress();
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A step of unknown length begins, and the one before it ends.
  void begin(std::string step);
  // How far the step is, 0..1, and what to call it now.
  void show(double fraction, std::string label);
  // Takes the line away, for others to write. It comes back with the next draw.
  void clear();
  // No step any more; the line is gone.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  void draw_until_end();
  std::string line(Clock::time_point now) const;

  const bool terminal_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread drawer_;
  bool ending_ = false;
  bool drawn_ = false;  // the line stands on the terminal
  Clock::time_point begun_;
  std::string label_;
  std::optional<double> fraction_;
};

}  // namespace vqgen::cli

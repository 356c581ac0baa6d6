// Progress of long work on stderr: a bar on a terminal, a line a stage elsewhere.
#pragma once

#include <string>

namespace vqgen::cli {

class Progress {
 public:
  Progress();
  ~Progress();  // ends the bar's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether there is room for labels that change all the time.
  bool terminal() const { return terminal_; }

  // `fraction` is 0..1 of all the work, `label` what is being done.
  void show(double fraction, const std::string& label);

 private:
  bool terminal_;
  bool open_ = false;
  int last_percent_ = -1;
  std::string last_label_;
};

}  // namespace vqgen::cli

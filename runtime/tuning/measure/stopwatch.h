// Time of a scope, added up.
#pragma once

#include <chrono>

namespace vqgen {

class Stopwatch {
 public:
  // Adds to `total_s` when it goes.
  explicit Stopwatch(double& total_s) : total_s_(total_s) {}
  ~Stopwatch() {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    total_s_ += spent.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_s_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace vqgen

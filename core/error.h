// The one exception type of vqgen, for faults of the world outside (bad input, missing compiler,
// wrong result). Expected absence is a value: std::optional, Verdict.
#pragma once

#include <stdexcept>
#include <string>

namespace vqgen {

// The kind of a fault; its value is the exit code of the command line tool.
enum class ErrorKind : int {
  bad_input = 2,            // usage, malformed or impossible input
  infeasible = 3,           // well formed, but no kernel of vqgen can do it (yet)
  verification_failed = 4,  // ran, and the result is wrong
  device = 5,               // compiler, driver or device missing or failed
};

// The message is one line that names what failed, on what, and the remedy.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

}  // namespace vqgen

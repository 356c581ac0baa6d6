// Kernel text to the bytes of a shared library, by the system's C++ compiler.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace vqgen::host {

// Thread-safe.
class Compiler {
 public:
  // `program` empty: g++, then c++, on PATH. The compiler is looked for at first use.
  Compiler(std::string program, std::filesystem::path scratch, bool check_races, bool optimize);

  CompilerIdentity identity() const;
  Artifact compile(const KernelSource& source) const;

 private:
  struct Found {
    std::string program;
    std::string version;  // first line of --version, less the program's name
  };
  Found find() const;

  std::vector<std::string> candidates_;
  std::filesystem::path scratch_;
  std::vector<std::string> options_;
  mutable std::mutex mutex_;
  mutable std::optional<Found> found_;
};

}  // namespace vqgen::host

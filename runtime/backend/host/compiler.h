// Kernel text to the bytes of a shared library, by the system's C++ compiler, and that loaded.
#pragma once

#include <vq/host_api.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/host/process.h"

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
    std::vector<std::string> options;
  };
  Found find() const;

  std::vector<std::string> candidates_;
  std::filesystem::path scratch_;
  bool check_races_;
  bool optimize_;
  mutable std::mutex mutex_;
  mutable std::optional<Found> found_;
};

// One loaded copy of a compiled kernel text. Each worker has its own copy, so that the text's one
// global, the running context, needs no thread-local storage.
class Library {
 public:
  // Error(device) where `binary` is no library of `source` or was built for another runner, or to
  // check races where the runner does not, or the other way round.
  Library(std::span<const std::byte> binary, const KernelSource& source, bool check_races,
          const std::filesystem::path& scratch);

  const vq::host::Entry& entry(std::size_t index) const { return *entries_.at(index); }

 private:
  struct Close {
    void operator()(void* handle) const;
  };
  std::unique_ptr<ScratchFolder> file_;  // only where a sanitizer's report may want to read it
  std::unique_ptr<void, Close> handle_;
  std::vector<const vq::host::Entry*> entries_;
};

}  // namespace vqgen::host

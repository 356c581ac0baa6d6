// Running one program without a shell.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace vqgen::host {

// A private folder that goes with its owner, and in an interruption (core/json/leftovers.h), unless
// it is kept.
class ScratchFolder {
 public:
  // Creates it under `parent`, or temporary_folder() if that is empty, with its errors.
  // Error(device).
  explicit ScratchFolder(const std::filesystem::path& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

struct RunOptions {
  std::vector<std::string> environment = {};  // "NAME=value" in place of this process's
  std::optional<std::chrono::seconds> longest = std::nullopt;
};

// Runs `command` (program and arguments) in `folder`, its messages in English and into folder/log.
// The exit status, 128 + n after signal n; nullopt where there is no such program. Error(device)
// where it does not start otherwise, or takes longer than it may, and is ended. Thread-safe.
std::optional<int> run_process(const std::vector<std::string>& command,
                               const std::filesystem::path& folder, const std::string& log,
                               RunOptions options = {});

}  // namespace vqgen::host
